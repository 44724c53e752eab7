"""What a run over a dataset wrote, without torch: opened, checked, or turned into a file."""
