"""Exported programs (``.pt2``): their graphs in, ordinary modules with the old names out."""
