"""Ablation: what can be knocked out, knocking it out in turn, how it is measured, the result."""
