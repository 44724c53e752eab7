"""The memory of a training step or of inference, from a run with fake tensors."""
