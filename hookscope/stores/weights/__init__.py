"""Files of weights in each format, read as one set of named tensors."""
