"""What comes out, as data and on disk. Without torch."""
