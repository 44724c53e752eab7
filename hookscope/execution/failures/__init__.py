"""Explanations of a failed forward pass: earlier calls, the input, and what would fit."""
