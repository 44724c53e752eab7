"""Scripts that make the generated files of this project."""
