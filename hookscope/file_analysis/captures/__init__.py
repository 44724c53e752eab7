"""Differences between captures."""
