"""Models of transformers: a folder, a configuration alone, or a name in the hub's cache."""
