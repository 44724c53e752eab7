"""Run as a process that knows none of the examples' classes: each file as both open it.

    python -m tests.sources.torchscript.compare_files FOLDER

FOLDER holds ``calls.pt`` (names, and for each the method and the calls) and a ``NAME.pt`` for each.
A JSON object of what differs is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import hookscope
from tests.sources.torchscript.examples import difference, outcome, quietly


def main() -> None:
    folder = Path(sys.argv[1])
    found = {}
    for name, (method, calls) in torch.load(folder / "calls.pt").items():
        file = folder / f"{name}.pt"
        with quietly():
            theirs = torch.jit.load(file).eval()
        ours = hookscope.load_model(file).module
        for call in calls:
            text = difference(*(outcome(getattr(one, method), call) for one in (theirs, ours)))
            if text:
                found[name] = text
    assert not [name for name in sys.modules if ".programs_" in name]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
