"""The effect of edits: the change of the output and of every layer against a run without edits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookscope.execution.forward import run_without_hooks
from hookscope.execution.language_output import next_tokens
from hookscope.execution.prepare import Prepared
from hookscope.execution.provenance import top_classes
from hookscope.execution.recorded_run import RecordedRun
from hookscope.execution.verification import second_run
from hookscope.hooks.capture import Capture
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.interventions import BoundInterventions
from hookscope.results.metadata import (
    AppliedEdit,
    EditEffect,
    OutputChange,
    RecordChange,
    TensorChange,
)
from hookscope.results.stats import ScaledSum
from hookscope.specs.choices import VALUE_HOOKS
from hookscope.specs.edit import WEIGHTS
from hookscope.specs.literal_arguments import split_call
from hookscope.specs.model_spec import FILE, MODULE
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_dense, walk
from hookscope.tensors.tensor_stats import sum_of_squares

log = logging.getLogger("hookscope")


def describe_effect(
    prepared: Prepared, run: RecordedRun, rerun: Callable[[Prepared], RecordedRun], compare: bool
) -> dict[str, Any]:
    """Return the metadata of a run with edits: ``edits``, ``grad_edits`` and ``effect``.

    With ``compare`` the effect has the ``drift`` of each recorded tensor from the first edited on.
    """
    interventions = prepared.interventions
    if not interventions:
        return {}
    applied = _edit_entries(interventions.values, run.values)
    grad_edits = _edit_entries(interventions.gradients, run.gradients) if run.gradients else []
    edits = interventions.values + interventions.gradients
    # Edited layers are recorded in the first run, so the second run has to record them too.
    layers = tuple(dict.fromkeys((*prepared.layers, *(edit.layer for edit in edits))))
    clean = replace(prepared, interventions=BoundInterventions(), layers=layers)
    effect: EditEffect = {}
    with second_run(len(run.capture)), grad_mode(run.gradients is not None):
        compared = rerun(clean).capture if compare else None
        has_user_hooks = compared is not None and interventions.hooks_of(VALUE_HOOKS)
        if interventions.values or has_user_hooks:  # edits of gradients do not change the output
            output = run_without_hooks(clean) if compared is None else compared.output
            effect |= _output_effect(prepared, run.capture.output, output)
            if compared is not None and _lacks_class_names(prepared, output):
                log.info(
                    "no top classes: %s defines no list 'categories' of their names",
                    split_call(prepared.loaded.spec)[0].rpartition(":")[0] or prepared.loaded.spec,
                )
    if compared is not None:
        entries = drift(run.capture, compared)
        # What is before the first edited value did not change. Edited weights may be read anywhere.
        values_only = not any(edit.edit.kind == WEIGHTS for edit in interventions.values)
        changed = {key for entry in applied for key in entry["changed"]}
        indices = [n for n, entry in enumerate(entries) if entry["key"] in changed]
        known = indices and run.gradients is None and values_only
        effect["drift"] = entries[indices[0] if known else 0 :]
    metadata = {"edits": applied, "grad_edits": grad_edits, "effect": effect}
    return {name: value for name, value in metadata.items() if value}


def _edit_entries(edits: Sequence[BoundEdit], editor: Editor) -> list[AppliedEdit]:
    texts = {edit.position: edit.edit.text for edit in edits}
    return [{"edit": text, "changed": list(editor.changed[n])} for n, text in texts.items()]


def _lacks_class_names(prepared: Prepared, output: Any) -> bool:
    """Whether a model from a Python file returns (N, C), and its file names no classes."""
    loaded = prepared.loaded
    if loaded.source not in (FILE, MODULE) or loaded.categories:
        return False
    first = next((tensor for _, tensor in walk(output)), None)
    return first is not None and first.ndim == 2 and first.shape[1] > 1


def _output_effect(prepared: Prepared, edited: Any, clean: Any) -> EditEffect:
    old = {".".join(("output", *path)): tensor for path, tensor in walk(clean)}
    new = {".".join(("output", *path)): tensor for path, tensor in walk(edited)}
    changes: list[OutputChange] = [
        {"name": name, **tensor_change(old.get(name), tensor)} for name, tensor in new.items()
    ]
    before, after = (top_classes(prepared, value) for value in (clean, edited))
    effect: EditEffect = {"output": changes}
    if before and after:
        effect["top"] = {"unedited": before, "edited": after}
    if prepared.generate is None:
        old_tokens, new_tokens = (next_tokens(prepared, value) for value in (clean, edited))
        if old_tokens and new_tokens:
            effect["next_tokens"] = {"unedited": old_tokens, "edited": new_tokens}
    return effect


def drift(edited: Capture, clean: Capture) -> list[RecordChange]:
    """Return the change of each recorded tensor, by ``key``, in the order of the edited run."""
    kinds = {record.kind for record in clean.records}  # without those of edits and hooks only
    return [
        {"key": record.key, **tensor_change(clean.get(record.key), edited[record.key])}
        for record in edited.records
        if record.kind in kinds
    ]


def tensor_change(before: Tensor | None, after: Tensor) -> TensorChange:
    """Return the largest difference, and its norm relative to the norm of ``before``.

    Equal entries, and two NaN, differ by 0. Both are None if the shapes differ. In float64.

    >>> tensor_change(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0]))
    {'largest': 1.0, 'relative': 0.2}
    """
    if before is None or before.shape != after.shape:
        return {"largest": None, "relative": None}
    distance, size = ScaledSum(), ScaledSum()
    largest = _add_difference(before, after, distance, size)
    return {"largest": largest, "relative": _relative(distance, size)}


def relative_change(before: Any, after: Any) -> float | None:
    """Return ``relative`` of ``tensor_change`` for all floating-point tensors of an output.

    It is None if there are none, or the outputs do not have the same ones.
    """
    old, new = ([(p, t) for p, t in walk(x) if _is_measured(t)] for x in (before, after))
    if not old or [(p, t.shape) for p, t in old] != [(p, t.shape) for p, t in new]:
        return None
    distance, size = ScaledSum(), ScaledSum()
    for (_, a), (_, b) in zip(old, new, strict=True):
        _add_difference(a, b, distance, size)
    return _relative(distance, size)


def _is_measured(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized


def _add_difference(before: Tensor, after: Tensor, distance: ScaledSum, size: ScaledSum) -> float:
    """Add the squares of the difference, and those of ``before``; return the largest difference."""
    dtype = torch.complex128 if before.is_complex() or after.is_complex() else torch.float64
    a, b = (as_dense(t.detach()).to(dtype) for t in (before, after))
    difference = b - a
    value, exponent = sum_of_squares(difference)
    if not math.isfinite(value):
        same = (a == b) | (a.isnan() & b.isnan())
        difference = torch.where(same, 0, difference)
        value, exponent = sum_of_squares(difference)
        if not math.isfinite(value):  # finite numbers may be farther apart than the largest float
            value, exponent = sum_of_squares(torch.where(same, 0, b / 4 - a / 4))
            exponent += 4
    distance.add(value, exponent)
    size.add(*sum_of_squares(a))
    return float(difference.abs().max()) if difference.numel() else 0.0


def _relative(distance: ScaledSum, size: ScaledSum) -> float:
    if not distance.value:
        return 0.0
    if not math.isfinite(distance.value) or not math.isfinite(size.value):
        return distance.value / size.value if size.value else math.inf
    return distance.root_of_share(size) if size.value else math.inf
