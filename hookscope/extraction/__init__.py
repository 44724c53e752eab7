"""Whole datasets: many inputs through a model into a folder of shards, and that read again."""
