"""Files of captures: reading, exporting, arrays."""
