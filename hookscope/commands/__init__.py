"""The commands, each in a file of its name: the function for Python and the command of the shell.

Nothing here prints but through ``hookscope.cli.console``. Notes on defaults go to the logger
``hookscope``. Importing a file imports neither torch nor numpy.
"""
