"""Questions that take several runs of a model."""
