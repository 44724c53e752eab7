"""Folders of training runs: their series, blocks of rows and tables."""
