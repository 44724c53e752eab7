"""Faults of a model: observations of a run, and the findings from them."""
