"""The entry point of the command, for its script and for ``python -m hookscope``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also during its imports."""
    try:
        from hookscope.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)  # as errors.INTERRUPTED, whose import may be what was interrupted
    run()  # handles Ctrl-C itself, except in a script of the user's


if __name__ == "__main__":
    main()
