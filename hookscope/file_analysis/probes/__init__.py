"""Linear probes fitted to rows of features."""
