"""What functions compute between modules (``--ops``), and the weights of attention."""
