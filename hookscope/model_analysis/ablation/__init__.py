"""What each layer contributes to a score."""
