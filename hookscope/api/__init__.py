"""The public functions, each in a file of its name: the commands of the command line for Python.

Nothing here prints. Notes on defaults go to the logger ``hookscope``.
"""
