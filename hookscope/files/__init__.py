"""Detect types of files, scan pickles, write atomically, JSON with types. Without torch."""
