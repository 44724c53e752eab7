"""The inputs that excite the units of a layer most and least."""
