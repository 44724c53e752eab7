"""The commands, each in a file of its name: the function for Python and the command of the shell.

Importing a file imports neither torch nor numpy.
"""
