"""A resumed training against one that was not interrupted: what was not restored is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import hookscope
from tests.conftest import Run

SCRIPT = Path(__file__).with_name("scripts") / "resumed.py"
# What each fault is called, the place of the first difference, what differs at B's first step, and
# a word of what is said.
FAULTS = [
    ("nothing", None, [], "3 of them sampled"),
    ("weights", (3, "0/weight"), ["parameter"], "weights"),
    ("optimizer", (3, "state"), ["state", "lr"], "optimizer"),
    ("scheduler", (4, "groups.0"), [], "scheduler"),
    ("generator", (3, "batch"), ["batch", "generators"], "generator"),
    ("loader", (3, "batch"), ["batch"], "step 0 of A"),
]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_was_not_restored_is_named_first(run: Run, tmp_path: Path) -> None:
    for name, *arguments in (("whole",), *((fault, fault) for fault, *_ in FAULTS)):
        done = run("run", "--every", 1, "-o", name, SCRIPT, *arguments)
        assert done.rc == 0, done.stderr
    for fault, place, differing, word in FAULTS:
        done = run("diff", "whole", fault, "--shift", 3, "--strict", "--markdown")
        assert done.rc == (place is not None) and word in done.stdout, (fault, done.stdout)
        found = hookscope.diff(*(tmp_path / "work" / name for name in ("whole", fault)), shift=3)
        assert (found.first and (found.first.step, found.first.key)) == place, fault
        assert [kind for kind, same in found.seam.items() if not same] == differing, fault
        if fault == "optimizer":
            assert found.first is not None
            assert (found.shift, found.first.a, found.first.b) == (3, 12, 0)  # tensors
