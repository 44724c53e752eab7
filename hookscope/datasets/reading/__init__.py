"""Reading what a run over a dataset wrote, without torch: lazily, checked, or turned into a file."""
