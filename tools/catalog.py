"""Write the bundled list of models: ``python -m tools.catalog``, after torchvision was upgraded."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version

from hookscope.sources import catalog
from hookscope.sources.torchvision import live


def render() -> str:
    """Return the text of ``hookscope/sources/catalog.json`` for the installed torchvision."""
    release = ".".join(version("torchvision").split(".")[:2])
    rows = ",\n".join(json.dumps(asdict(info)) for info in live())
    return f'{{"torchvision": "{release}", "models": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    catalog.FILE.write_text(render(), encoding="utf-8")
