"""User hooks: loading them, binding them to layers, and what they emit."""
