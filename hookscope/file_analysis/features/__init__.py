"""Differences between folders of features."""
