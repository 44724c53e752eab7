"""The bundled list of models: ``python -m tools.catalog`` writes it from the installed torchvision.

With ``--check`` nothing is written, and the exit status is 1 when the list is stale.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.metadata import version

from hookscope.sources.torchvision import live
from hookscope.specs import catalog


def render() -> str:
    """Return the text of ``hookscope/specs/catalog.json`` for the installed torchvision."""
    release = ".".join(version("torchvision").split(".")[:2])
    rows = ",\n".join(json.dumps(asdict(info)) for info in live())
    return f'{{"torchvision": "{release}", "models": [\n{rows}\n]}}\n'


def main() -> int:
    """Write the list, or with ``--check`` compare it; return the exit status."""
    checking = "--check" in sys.argv[1:]
    if (
        checking and not catalog.list_is_current()
    ):  # hookscope then asks torchvision and not the list
        print("The list is for another release of torchvision, so it is not in use.")
        return 0
    fresh = render()
    if not checking:
        catalog.FILE.write_text(fresh, encoding="utf-8")
    elif catalog.FILE.read_text(encoding="utf-8") != fresh:
        print(f"{catalog.FILE} is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
