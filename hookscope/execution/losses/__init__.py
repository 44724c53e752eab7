"""Losses, and the targets that they are computed with."""
