"""What is known of a forward pass that failed: what ran before, what came in, what would fit."""
