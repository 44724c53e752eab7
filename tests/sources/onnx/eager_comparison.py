"""A model and its ONNX file on one input: the names of modules, and values against plain hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import hookscope
from tests.oracle.by_hand import outputs
from tests.sources.onnx.conftest import export


@dataclass(frozen=True)
class EagerComparison:
    """What an ONNX file has of a model.

    Attributes:
        names: names of the modules in the file.
        unknown: names in the file that the model does not have.
        absent: modules that hookscope calls absent, each with the reason.
        silent: modules that are neither in the file nor called absent.
        deviations: for each call of a module that is in both, the largest difference relative to
            the largest value.
        cut: modules whose last operation is folded into another module.
        unmatched: calls of modules in the file that the model did not make, or whose output has
            another number of entries. The last reshape of a module may be joined with the next.
        missed: calls of modules in the file that the model made and the file does not have.
    """

    names: frozenset[str]
    unknown: frozenset[str]
    absent: Mapping[str, str]
    silent: frozenset[str]
    deviations: Mapping[str, float]
    cut: frozenset[str]
    unmatched: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def largest(self) -> tuple[float, str]:
        """The largest deviation and its key."""
        return max((value, key) for key, value in self.deviations.items())


def compare_with_eager(
    model: nn.Module,
    path: Path,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> EagerComparison:
    """Export a model to ``path`` and compare every call of every module with plain hooks."""
    inputs = dict(kwargs or {})
    expected = hooked_tensors(model, args, inputs)
    export(model, args, path, **({"kwargs": inputs} if inputs else {}), **options)
    tree = hookscope.tree(path)
    names = frozenset(node.name for node in tree.modules[1:])
    absent = {module.name: module.reason for module in tree.absent}
    own = {name for name, _ in model.named_modules(remove_duplicate=False) if name}
    shot = hookscope.capture(path, input=inputs or (args[0] if len(args) == 1 else args))
    cut = frozenset(n.name for n in tree.modules if n.note.startswith("its last module"))
    deviations, unmatched = {}, []
    for key in shot:
        call, _, leaf = key.partition("/output")
        if call in (".", "") or leaf not in ("", ".0") or call.partition(":")[0] in cut:
            continue
        if call in expected and expected[call].numel() == shot[key].numel():
            deviations[call] = relative_deviation(shot[key].flatten(), expected[call].flatten())
        else:
            unmatched.append(call)
    compared = {*deviations, *unmatched}
    return EagerComparison(
        names,
        names - own,
        absent,
        frozenset(own - names - set(absent)),
        deviations,
        cut,
        tuple(unmatched),
        tuple(c for c in expected if c not in compared and c.partition(":")[0] in names - cut),
    )


def hooked_tensors(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A copy of the first tensor that each call of each module returns, by ``name:call``."""
    values: dict[str, Tensor] = {}
    for key, tensor in outputs(model, *args, **kwargs).items():
        values.setdefault(key.partition("/output")[0], tensor)
    return {call: tensor for call, tensor in values.items() if call != "."}


def relative_deviation(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest value."""
    if not expected.numel():
        return 0.0
    gap = (found.double() - expected.double()).abs().max()
    return float(gap / expected.double().abs().max().clamp_min(1e-30))
