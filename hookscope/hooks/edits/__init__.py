"""Edits: bound to layers, their operations, and the subscriber that applies them."""
