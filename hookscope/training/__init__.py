"""Watching the training of a script that somebody else wrote."""
