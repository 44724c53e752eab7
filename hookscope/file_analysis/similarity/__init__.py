"""Similarity of layers, measured on rows of features."""
