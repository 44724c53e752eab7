"""Losses by name, and the targets they are measured against."""
