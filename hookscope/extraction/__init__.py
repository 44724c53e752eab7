"""Runs of a model over a whole dataset, into a folder of features."""
