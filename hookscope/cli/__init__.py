"""The command line: options in, one call of the Python face, its result printed."""
