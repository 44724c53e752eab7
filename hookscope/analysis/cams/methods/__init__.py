"""The methods of ``cam``: one file and one class for each, named after the paper."""
