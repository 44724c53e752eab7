"""What each layer of a language model would predict."""
