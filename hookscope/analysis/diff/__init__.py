"""Comparison of two models on one input, tensor by tensor."""
