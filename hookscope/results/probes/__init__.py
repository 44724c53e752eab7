"""Linear probes of the layers in a features folder."""
