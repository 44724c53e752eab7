"""Which parts of an image a class's score comes from, as maps over it (``hookscope cam``)."""
