"""Results as text, images and HTML. Without torch."""
