"""The entry point of the command, for its script and for ``python -m hookscope``."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. Ctrl-C ends it without a traceback, also during its imports."""
    try:
        from hookscope.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
