"""What is wrong with a training run."""
