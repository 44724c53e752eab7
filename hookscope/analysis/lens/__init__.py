"""The logit lens."""
