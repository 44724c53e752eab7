"""Results, as data and on disk. Without torch."""
