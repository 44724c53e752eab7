"""What is wrong with a file of weights: findings from the measures of its tensors."""
