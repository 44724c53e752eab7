"""From the words given as input to the batch that a model is called with."""
