"""Nested values, clones, statistics of tensors, seeding, threads, saving."""
