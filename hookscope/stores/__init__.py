"""One reader and one writer for each kind of file: captures, features, runs, weights."""
