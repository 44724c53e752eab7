"""The terminal: parser, options, help, completion, settings, console and errors."""
