"""What of a tensor is put into a picture, and in which colours: arrays in, arrays out."""
