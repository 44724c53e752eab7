"""Folders of features: manifest, shards of rows, and the handle that reads them."""
