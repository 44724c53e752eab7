"""The command line: options become one call of ``hookscope.api``, and its result is printed."""
