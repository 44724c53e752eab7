"""Measures of weights, and their differences."""
