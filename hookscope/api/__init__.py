"""The verbs, each one function in a file of its name: what the command line does, for Python.

Nothing here prints. Notes on what was chosen by default go to the logger ``hookscope``.
"""
