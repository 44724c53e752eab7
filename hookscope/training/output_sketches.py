"""The fingerprint of one step of a training: a sketch of what each layer returned in it.

A step cannot be run again to measure how much of a difference is rounding. An output beyond
``eps ** (2 / 3)`` of its norm, for the epsilon of its dtype, is taken to differ by more: 2.4e-5 in
float32, 0.04 in bfloat16. Rounding of single steps stays far below, and grows from step to step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import what_of
from hookscope.model_analysis.fingerprint_run import FingerprintSink, describe_environment
from hookscope.results.fingerprint import (
    ASSUMED,
    ROUNDING_DIGITS,
    FingerprintEntry,
    ModelFingerprint,
    rounded,
)
from hookscope.results.fingerprint_diff import LIMIT
from hookscope.results.records import Record, key_of
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.nested import walk
from hookscope.training.tensor_measures import is_measurable

_MAX_CALLS = 8  # of a layer in a step, such as of micro-batches


class OutputSketches:
    """Sketches of the outputs of a model, made while its layers run."""

    def __init__(self) -> None:
        self._sink = FingerprintSink()
        self._calls: Counter[str] = Counter()

    def add(self, layer: Layer, output: object) -> None:
        """Add what a call of a layer returned; further calls of it are left out."""
        self._calls[layer.name] += 1
        call = self._calls[layer.name]
        if call > _MAX_CALLS:
            return
        for path, tensor in walk(output, whole=True):
            if is_measurable(tensor):
                self._add(layer, call, what_of(OUTPUT, path), tensor.detach())

    def _add(self, layer: Layer, call: int, what: str, tensor: Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        about = (layer.name, layer.type, call, what, OUTPUT, tuple(tensor.shape), dtype)
        key = key_of(layer.name, call, what)
        self._sink.add(Record(key, *about, device=str(tensor.device)), tensor)

    def join(self, later: OutputSketches) -> None:
        """Add those of a later part of the step, of layers that did not run before."""
        known = {entry.key for entry in self._sink.entries}
        self._sink.entries += [one for one in later._sink.entries if one.key not in known]

    def fingerprint(self, model: str, step: int, versions: dict[str, str]) -> ModelFingerprint:
        """Return the fingerprint of the step, each entry with what is taken for its rounding."""
        entries = (replace(one, rounding=_assumed_rounding(one)) for one in self._sink.entries)
        about = {
            "command": "run",
            "model": {"spec": model},
            "step": step,
            "rounding": [ASSUMED],
            "versions": versions,
            "environment": describe_environment(),
        }
        return ModelFingerprint(tuple(entries), about)


def _assumed_rounding(entry: FingerprintEntry) -> float | None:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return rounded(torch.finfo(dtype).eps ** (2 / 3) / LIMIT, ROUNDING_DIGITS)
