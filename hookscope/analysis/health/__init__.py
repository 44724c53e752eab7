"""Whether a model is in good order: what is measured as it runs, and what is found."""
