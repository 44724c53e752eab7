"""One run of a model for each edit."""
