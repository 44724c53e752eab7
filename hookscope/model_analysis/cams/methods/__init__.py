"""The methods of class activation maps."""
