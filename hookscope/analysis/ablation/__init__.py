"""Ablation of layers and channels: the runs, and the baseline that they are measured by."""
