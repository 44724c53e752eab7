"""Comparisons of captures: which tensors are paired, and how much they differ."""
