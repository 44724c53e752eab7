"""Maps over an image that explain the score of a class (``hookscope cam``)."""
