"""Explanations of a failed backward pass: what it needed, which line took it away, what helps."""
