"""Everything a user can ask for, parsed and checked without torch."""
