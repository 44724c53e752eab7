"""The folder of a training run: what was measured, step by step."""
