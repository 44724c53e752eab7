"""From input specs to the batch that a model is called with; a file for each kind of input."""
