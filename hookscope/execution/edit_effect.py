"""What edits did: how far the output and every layer moved from where they are without edits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookscope.execution.forward import grad_mode, run_without_hooks, second_run
from hookscope.execution.prepare import Prepared
from hookscope.execution.provenance import top_classes
from hookscope.execution.recorded_run import RecordedRun
from hookscope.hooks.capture import Capture
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.interventions import BoundInterventions
from hookscope.results.stats import ScaledSum
from hookscope.specs.choices import VALUE_HOOKS
from hookscope.tensors.nested import walk
from hookscope.tensors.tensor_stats import sum_of_squares


def describe_effect(
    prepared: Prepared, run: RecordedRun, again: Callable[[Prepared], RecordedRun], compare: bool
) -> dict[str, Any]:
    """Return what a file tells of a changed run: ``edits``, ``grad_edits`` and ``effect``.

    For each edit there is its ``edit`` (the word) and what it ``changed`` (keys). ``effect`` comes
    from a run of the same model without edits, and holds

    - ``output``: how far each tensor of the model's output moved (see ``change``),
    - ``top``: for a classifier with named classes, the likeliest of each image, ``unedited`` and
      ``edited``,
    - ``drift``: with ``compare``, for which ``again`` records such a run, how far each recorded
      tensor moved. Of a capture only what was recorded from the first edited tensor on can have.
    """
    if not prepared.plan:
        return {}
    told = {
        "edits": _told(prepared.plan.values, run.values),
        "grad_edits": _told(prepared.plan.gradients, run.gradients) if run.gradients else [],
    }
    bounds = prepared.plan.values + prepared.plan.gradients
    # A layer that is edited is recorded in the one run, so it has to be in the other.
    layers = tuple(dict.fromkeys((*prepared.layers, *(bound.layer for bound in bounds))))
    clean = replace(prepared, plan=BoundInterventions(), layers=layers)
    effect: dict[str, Any] = {}
    with second_run(len(run.capture)), grad_mode(run.gradients is not None):
        other = again(clean).capture if compare else None
        hooked = other is not None and prepared.plan.hooks_of(VALUE_HOOKS)
        if prepared.plan.values or hooked:  # edited gradients leave the output where it is
            output = run_without_hooks(clean) if other is None else other.output
            effect |= _at_the_output(prepared, run.capture.output, output)
    if other is not None:
        entries = drift(run.capture, other)
        changed = {key for entry in told["edits"] for key in entry["changed"]}
        at = [n for n, entry in enumerate(entries) if entry["key"] in changed]
        effect["drift"] = entries[at[0] if at and run.gradients is None else 0 :]
    return {name: value for name, value in (told | {"effect": effect}).items() if value}


def _told(bounds: Sequence[BoundEdit], editor: Editor) -> list[dict[str, Any]]:
    words = {bound.position: bound.edit.word for bound in bounds}
    return [{"edit": words[n], "changed": editor.changed[n]} for n in words]


def _at_the_output(prepared: Prepared, edited: Any, clean: Any) -> dict[str, Any]:
    old = {".".join(("output", *path)): tensor for path, tensor in walk(clean)}
    new = {".".join(("output", *path)): tensor for path, tensor in walk(edited)}
    moved = [{"name": name, **tensor_change(old.get(name), tensor)} for name, tensor in new.items()]
    before, after = (top_classes(prepared, value) for value in (clean, edited))
    top = {"top": {"unedited": before, "edited": after}} if before and after else {}
    return {"output": moved, **top}


def drift(edited: Capture, clean: Capture) -> list[dict[str, Any]]:
    """Return how far each recorded tensor moved, by ``key``, in the order of the edited run."""
    kinds = {record.kind for record in clean.records}  # not those of edits and hooks alone
    return [
        {"key": record.key, **tensor_change(clean.get(record.key), edited[record.key])}
        for record in edited.records
        if record.kind in kinds
    ]


def tensor_change(before: Tensor | None, after: Tensor) -> Mapping[str, float | None]:
    """Return how far ``after`` is from ``before``, computed in float64.

    ``largest`` is the largest absolute difference of two entries, ``relative`` the Euclidean norm
    of the difference over that of ``before``. Entries that are the same, NaN among them, differ by
    0. Both are None where there is nothing to compare with: no such tensor, or another shape.

    Example:
        >>> change(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0]))
        {'largest': 1.0, 'relative': 0.2}
    """
    if before is None or before.shape != after.shape:
        return {"largest": None, "relative": None}
    distance, size = ScaledSum(), ScaledSum()
    largest = _add(before, after, distance, size)
    return {"largest": largest, "relative": _relative(distance, size)}


def relative_change(before: Any, after: Any) -> float | None:
    """Return how far all floating-point tensors of one output are from those of another.

    It is the ``relative`` of ``change`` with all of them taken for one long vector; None where the
    outputs have not the same tensors, or none that count.

    Example:
        >>> relative_change((torch.tensor([3.0]), torch.tensor([4.0])), (torch.zeros(1),) * 2)
        1.0
    """
    old, new = ([(p, t) for p, t in walk(x) if _counts(t)] for x in (before, after))
    if not old or [(p, t.shape) for p, t in old] != [(p, t.shape) for p, t in new]:
        return None
    distance, size = ScaledSum(), ScaledSum()
    for (_, a), (_, b) in zip(old, new, strict=True):
        _add(a, b, distance, size)
    return _relative(distance, size)


def _counts(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized


def _add(before: Tensor, after: Tensor, distance: ScaledSum, size: ScaledSum) -> float:
    """Add the squares of the difference, and those of ``before``; return the largest difference."""
    wide = torch.complex128 if before.is_complex() or after.is_complex() else torch.float64
    a, b = (_dense(t).to(wide) for t in (before, after))
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0, b - a).abs()
    value, exponent = sum_of_squares(gap)
    if not math.isfinite(value):  # two finite numbers may be farther apart than the largest float
        value, exponent = sum_of_squares(torch.where(same, 0, b / 4 - a / 4))
        exponent += 4
    distance.add(value, exponent)
    size.add(*sum_of_squares(a))
    return float(gap.max()) if gap.numel() else 0.0


def _relative(distance: ScaledSum, size: ScaledSum) -> float:
    if not distance.value:
        return 0.0
    if not math.isfinite(distance.value) or not math.isfinite(size.value):
        return distance.value / size.value if size.value else math.inf
    return distance.root_of_share(size) if size.value else math.inf


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
