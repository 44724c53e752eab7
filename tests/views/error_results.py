"""Comparisons of two models with chosen errors, for tests of what is drawn of them."""

from __future__ import annotations

from collections.abc import Sequence

from hookscope.results.diff_result import Diff
from hookscope.results.local_diff import LocalDiff, ModuleError

SCRIPT = "<script>alert(1)</script>"
MODEL = {"spec": "net.py:Net", "weights": "as built"}


def local_diff(
    errors: Sequence[tuple[str, float | None, float | None]], unit: float = 1e-7, floor: str = ""
) -> LocalDiff:
    """A comparison with these modules, their accumulated and their own errors."""
    found = tuple(
        ModuleError(name, name, 1, "Linear", accumulated, False, own, f"{name}/output", unit)
        for name, accumulated, own in errors
    )
    sides = ({"model": MODEL, "inputs": [{"spec": "noise"}]}, {"model": MODEL})
    return LocalDiff(Diff((), (), (), False, False, *sides), found, floor)


def deep(count: int) -> LocalDiff:
    """A model of many modules: the first half is equal, the second half has errors."""
    half = count // 2
    errors = [(f"model.layers.{n}.mlp", 0.0, 0.0) for n in range(half)]
    errors += [(f"model.layers.{n}.mlp", 1e-5 * n, 1e-6) for n in range(half, count)]
    return local_diff(errors, floor="float64")
