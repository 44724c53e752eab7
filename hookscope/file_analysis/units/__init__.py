"""The inputs that a unit of a layer answers most."""
