"""Class activation maps."""
