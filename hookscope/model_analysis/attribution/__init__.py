"""How much each token or pixel contributes to a score."""
