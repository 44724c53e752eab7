"""A resumed training against one that was not interrupted: what was not restored is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hookscope
from tests.conftest import Run

SCRIPT = Path(__file__).with_name("scripts") / "resumed.py"
SAME = (
    "The same at the first step after resuming (step 3 of A, step 0 of B): weights, optimizer"
    " state, learning rate, batch, random generators."
)
SEAM = "at the first step after resuming (step 3 of A, step 0 of B)."
# What each fault is called, the place of the first difference, and what differs at B's first step.
FAULTS = [
    ("weights", f"The weights differ {SEAM}", (3, "0/weight"), ["parameter"]),
    (
        "optimizer",
        f"The optimizer state differs {SEAM} The optimizer was not restored, or not all of it.",
        (3, "state"),
        ["state", "lr"],
    ),
    ("scheduler", "The scheduler was not restored, or it stepped", (4, "groups.0"), []),
    (
        "generator",
        "The generator that orders the data was not restored",
        (3, "batch"),
        ["batch", "generators"],
    ),
    (
        "loader",
        f"The batch differs {SEAM} B's first batch is that of step 0 of A: the data loader starts",
        (3, "batch"),
        ["batch"],
    ),
]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_was_not_restored_is_named_first(run: Run, tmp_path: Path) -> None:
    def train(name: str, *arguments: str) -> None:
        done = run("run", "--every", 1, "-o", name, SCRIPT, *arguments)
        assert done.rc == 0, done.stderr

    train("whole")
    train("nothing", "nothing")
    same = run("diff", "whole", "nothing", "--shift", 3, "--strict")
    assert same.rc == 0, same.stdout
    assert same.stdout.splitlines()[-2:] == [
        SAME,
        "3 steps compared (3 of them sampled): all values agree exactly.",
    ]
    for fault, sentence, place, differing in FAULTS:
        train(fault, fault)
        done = run("diff", "whole", fault, "--shift", 3, "--markdown")
        assert done.rc == 1 and sentence in done.stdout, (fault, done.stdout)
        found = hookscope.diff(*(tmp_path / "work" / name for name in ("whole", fault)), shift=3)
        assert found.first is not None and (found.first.step, found.first.key) == place, fault
        assert [kind for kind, same in found.seam.items() if not same] == differing, fault
    done = run("diff", "whole", "optimizer", "--shift", 3, "--json")
    found = json.loads(done.stdout)
    assert (found["shift"], found["seam"]["state"], found["seam"]["batch"]) == (3, False, True)
    assert (found["first"]["a"], found["first"]["b"]) == (12, 0)  # tensors
