"""Comparisons of captures: which tensors belong together, how far they differ."""
