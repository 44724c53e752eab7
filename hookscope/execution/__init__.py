"""Runs of a model: preparation, forward, backward, losses, an optimizer's step, verification."""
