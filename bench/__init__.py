"""Measures hookscope against the plain Python that does the same: ``python -m bench``."""
