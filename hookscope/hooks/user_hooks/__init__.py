"""The user's own hooks: the words, the functions, where they are attached, what they emit."""
