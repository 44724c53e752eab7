"""The results of functions between modules (``--ops``), and the weights of attention."""
