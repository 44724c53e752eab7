"""What is wrong with the activations, gradients and parameters of a model."""
