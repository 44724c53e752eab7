"""The fingerprint of a model: one run for what its layers compute, two for how much of it rounds.

The rounding of a tensor is its relative distance from that of a copy of the model in float64, or of
a run that adds up in another order, whichever is larger. Another machine, release or number of
threads differs from the first run by about as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from hookscope.errors import HookscopeError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.model_analysis.diff.local_comparison import cast_copy
from hookscope.model_analysis.fingerprint_run import describe_environment, run_model
from hookscope.results.fingerprint import (
    ROUNDING_DIGITS,
    FingerprintEntry,
    ModelFingerprint,
    rounded,
)

_STORED = 2.0**-24  # the relative rounding of float32, in which projections are stored


def make_fingerprint(prepared: Prepared, metadata: dict[str, Any]) -> ModelFingerprint:
    """Run a model three times; return its fingerprint with the rounding of each layer."""
    with explain_forward_errors(prepared):
        entries, is_random = run_model(prepared)
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
    return run_model(cast_copy(prepared, torch.float64, ""))[0]


def _in_other_order(prepared: Prepared) -> tuple[FingerprintEntry, ...]:
    with _other_kernels():
        return run_model(prepared)[0]


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
