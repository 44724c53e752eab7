"""Edits: what a word asks for, the operations, the hooks that carry them out, and their effect."""
