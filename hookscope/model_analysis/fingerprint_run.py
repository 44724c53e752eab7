"""The fingerprint of a model: one run for what its layers compute, two for how much of it rounds.

The rounding of a tensor is its relative distance from that of a copy of the model in float64, or of
a run that adds up in another order, whichever is larger. Another machine, release or number of
threads differs from the first run by about as much.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.isolation import gpus_of, random_state
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.model_analysis.diff.local_comparison import cast_copy
from hookscope.model_analysis.diff.record_stream import StreamingSink
from hookscope.results.fingerprint import (
    ROUNDING_DIGITS,
    FingerprintEntry,
    ModelFingerprint,
    packed,
    rounded,
)
from hookscope.results.projections import project
from hookscope.results.records import Record
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.tensor_stats import numpy_blocks, summarize

NO_HASH = "-"
_DIGITS = 16  # of a hash in hexadecimal
_STORED = 2.0**-24  # the relative rounding of float32, in which projections are stored
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
        digest = (hash_tensors([("", tensor)]) or NO_HASH)[:_DIGITS]
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
        entries, _ = _run(prepared, known)
    return ModelFingerprint(entries, {**metadata, "environment": describe_environment()})


def _run(
    prepared: Prepared, known: ModelFingerprint | None = None
) -> tuple[tuple[FingerprintEntry, ...], bool]:
    """The entries of a run without gradients, and whether it drew random numbers."""
    sink, gpus = FingerprintSink(known), gpus_of(prepared.module)
    layers = layers_of(prepared.module)
    recorder = Recorder(prepared.module, layers, {INPUT, OUTPUT}, sink=sink)
    with prepared.preserved(), grad_mode(False), recorder:
        before = random_state(gpus)
        forward(prepared, sink.capture)
        is_random = random_state(gpus) != before
    return tuple(sink.entries), is_random


def make_fingerprint(prepared: Prepared, metadata: dict[str, Any]) -> ModelFingerprint:
    """Run a model three times; return its fingerprint with the rounding of each layer."""
    with explain_forward_errors(prepared):
        entries, is_random = _run(prepared)
    found: dict[str, dict[str, FingerprintEntry]] = {}
    for name, run in _OTHER_RUNS.items():
        if run is _in_float64 and (is_random or prepared.dtype == "float64"):
            continue  # dropout draws other numbers in another dtype
        # Not every model runs in float64, or with other kernels.
        with suppress(HookscopeError, RuntimeError):
            found[name] = {entry.key: entry for entry in run(prepared)}
    rounding = [_rounding(entry, found.values()) for entry in entries]
    largest = max((one for one in rounding if one is not None), default=None)
    measured = tuple(
        replace(entry, rounding=rounded(largest if one is None else one, ROUNDING_DIGITS))
        for entry, one in zip(entries, rounding, strict=True)
    )
    about = {**metadata, "rounding": list(found), "environment": describe_environment()}
    return ModelFingerprint(measured, about)


def _rounding(
    entry: FingerprintEntry, others: Iterable[dict[str, FingerprintEntry]]
) -> float | None:
    """The largest distance of the other runs; None if none of them has the tensor."""
    floor = 0.0
    dtype = getattr(torch, entry.dtype, None)
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
        floor = max(torch.finfo(dtype).eps / 2, _STORED)
    known = [entry.distance(other[entry.key]) for other in others if entry.key in other]
    finite = [distance for distance in known if isfinite(distance)]
    return max(floor, *finite) if finite else None if floor else 0.0


def _in_float64(prepared: Prepared) -> tuple[FingerprintEntry, ...]:
    return _run(cast_copy(prepared, torch.float64, ""))[0]


def _in_other_order(prepared: Prepared) -> tuple[FingerprintEntry, ...]:
    with _other_kernels():
        return _run(prepared)[0]


# By the name that the file has.
_OTHER_RUNS = {"in float64": _in_float64, "with other kernels": _in_other_order}


@signal_safe_contextmanager
def _other_kernels() -> Iterator[None]:
    """Another number of threads, and no kernels of oneDNN and cuDNN."""
    libraries = (torch.backends.mkldnn, torch.backends.cudnn)
    threads, enabled = torch.get_num_threads(), [library.enabled for library in libraries]
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        for library in libraries:
            library.set_flags(_enabled=False, _fp32_precision=None)
        yield
    finally:
        torch.set_num_threads(threads)
        for library, before in zip(libraries, enabled, strict=True):
            library.set_flags(_enabled=before, _fp32_precision=None)


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
