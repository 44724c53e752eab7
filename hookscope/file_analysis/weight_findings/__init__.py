"""What is wrong with weights."""
