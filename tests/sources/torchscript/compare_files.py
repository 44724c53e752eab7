"""Run as a process that knows none of the examples' classes: each file as both open it.

    python -m tests.sources.torchscript.compare_files FOLDER

FOLDER holds a ``TABLE.pt`` for each table of examples, and ``examples.pt``: of each table, for each
example the submodule, the method and the calls. A JSON object of what differs is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import hookscope
from tests.sources.torchscript.examples import Example, difference, outcome, quietly


def main() -> None:
    folder = Path(sys.argv[1])
    found = {}
    for table, examples in torch.load(folder / "examples.pt").items():
        file = folder / f"{table}.pt"
        with quietly():
            theirs = torch.jit.load(file).eval()
        ours = hookscope.load_model(file).module
        for name, (module, method, calls) in examples.items():
            called = Example(calls, module, method).of
            for call in calls:
                text = difference(*(outcome(called(one), call) for one in (theirs, ours)))
                if text:
                    found[name] = text
    assert not [name for name in sys.modules if ".programs_" in name]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
