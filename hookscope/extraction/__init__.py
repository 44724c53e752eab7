"""Runs of a model over a whole dataset, into a features folder."""
