"""Similarity of layers, computed from rows of features with numpy."""
