"""Figures drawn with matplotlib from plain arrays. No other package imports matplotlib."""
