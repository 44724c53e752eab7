"""File types, pickle scanning, atomic writing, and JSON with types."""
