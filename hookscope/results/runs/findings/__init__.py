"""What went wrong in a training run: the curves of its folder against published thresholds."""
