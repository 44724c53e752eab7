"""Summaries and differences of training runs."""
