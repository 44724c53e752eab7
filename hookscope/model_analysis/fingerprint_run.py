"""One run of a model, and what its layers compute, in the form of a fingerprint."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of, random_state
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.model_analysis.diff.record_stream import StreamingSink
from hookscope.results.fingerprint import (
    FingerprintEntry,
    ModelFingerprint,
    packed,
    rounded,
)
from hookscope.results.projections import project
from hookscope.results.records import Record, key_of
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.hash import hash_values
from hookscope.tensors.tensor_stats import numpy_blocks, summarize

NO_HASH = "-"
# Variables that choose the kernels of a library, or its number of threads.
_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR"),
    *("MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)


class FingerprintSink(StreamingSink):
    """Makes the entry of each tensor as it comes.

    An entry of ``known`` stands for a tensor with its key and bits, which saves computing it again.
    """

    def __init__(self, known: ModelFingerprint | None = None) -> None:
        super().__init__(self.add)
        self._known = known
        self._first: dict[tuple[str, str, tuple[int, ...]], FingerprintEntry] = {}
        self.entries: list[FingerprintEntry] = []

    def add(self, record: Record, tensor: Tensor) -> None:
        """Make the entry of a tensor; only its hash is new if it has the bits of an earlier one."""
        digest = hash_values(tensor) or NO_HASH
        bits = (digest, record.dtype, record.shape)
        earlier = self._first.get(bits) if digest != NO_HASH else None
        entry = earlier or self._known_entry(record, bits) or entry_of(record, tensor, digest)
        source = "" if earlier is None else earlier.key
        entry = replace(entry, key=record.key, type=record.type, source=source)
        self._first.setdefault(bits, entry)
        self.entries.append(entry)

    def _known_entry(
        self, record: Record, bits: tuple[str, str, tuple[int, ...]]
    ) -> FingerprintEntry | None:
        found = self._known.by_key.get(record.key) if self._known is not None else None
        return found if found and (found.digest, found.dtype, found.shape) == bits else None


def entry_of(record: Record, tensor: Tensor, digest: str) -> FingerprintEntry:
    """Return the entry of a tensor, without its rounding."""
    stats = summarize(tensor)
    numbers = map(rounded, (stats.mean, stats.std, stats.min, stats.max, stats.norm))
    mean, std, low, high, norm = numbers
    return FingerprintEntry(
        *(record.key, record.type, record.dtype, record.shape),
        *(mean, std, low, high, norm),
        nonfinite=stats.nan + stats.inf,
        rounding=None,
        digest=digest,
        sums=packed(project(numpy_blocks(tensor)), norm),
    )


def run_once(
    prepared: Prepared, metadata: dict[str, Any], known: ModelFingerprint
) -> ModelFingerprint:
    """Run a model once; return its fingerprint without roundings, to be compared with ``known``."""
    with explain_forward_errors(prepared):
        entries, _ = run_model(prepared, known)
    return ModelFingerprint(entries, {**metadata, "environment": describe_environment()})


def run_model(
    prepared: Prepared, known: ModelFingerprint | None = None
) -> tuple[tuple[FingerprintEntry, ...], bool]:
    """Return the entries of a run without gradients, and whether it drew random numbers."""
    sink, gpus = FingerprintSink(known), gpus_of(prepared.module)
    layers = layers_of(prepared.module)
    recorder = Recorder(prepared.module, layers, {INPUT, OUTPUT}, sink=sink)
    with prepared.preserved(), grad_mode(False), recorder:
        before = random_state(gpus)
        forward(prepared, sink.capture)
        is_random = random_state(gpus) != before
    if sink.absent and not sink.entries:
        one = sink.absent[0]
        raise RequestError(
            f"No tensor of the model has values: {key_of(one.module, one.call, one.what)} is"
            f" {one.reason}.",
            "Load the weights of the model, or build it on a device with memory.",
        )
    return tuple(sink.entries), is_random


def describe_environment() -> dict[str, str]:
    """Return what the rounding of a run depends on, apart from versions of packages."""
    found = {
        "machine": f"{platform.system()} {platform.machine()}",
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found | {name: os.environ[name] for name in _VARIABLES if name in os.environ}
