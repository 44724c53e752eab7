"""The commands, each in a file of its name: the function for Python and the command of the shell.

No command of the shell imports torch or numpy when its file is imported.
"""
