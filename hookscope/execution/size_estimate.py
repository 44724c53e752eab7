"""The size of a recording, estimated before it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hookscope.errors import CheckFailed
from hookscope.execution.isolation import seeded
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.sources.meta import meta_copy
from hookscope.specs.model_spec import LIVE
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors

log = logging.getLogger("hookscope")

LARGE = 10**9  # bytes from which on the size of a recording is logged before it is made


def estimate_bytes(prepared: Prepared, kinds: Iterable[str]) -> int | None:
    """Return the bytes that recording ``kinds`` would take; None if that is not known before a run.

    A copy of the model runs on the meta device, so caches and counters of the model do not change.
    A gradient has the size of its tensor.
    """
    if prepared.generate is not None or prepared.positions:  # they depend on values
        return None
    forward_kinds = {kind.removesuffix(".grad") for kind in kinds}
    names = {layer.name for layer in prepared.layers}
    try:
        copy = meta_copy(prepared.module)
        layers = [layer for layer in layers_of(copy) if layer.name in names]
        args, kwargs = as_call(map_tensors(prepared.value, lambda path, tensor: tensor.to("meta")))
        recorder = Recorder(
            copy,
            layers,
            forward_kinds - {"param"},
            sink=ShapeSink(),
            caches=forward_kinds == set(kinds),  # as in a recording without gradients
        )
        with seeded(copy, prepared.seed), grad_mode(False), recorder as capture:
            copy(*args, **kwargs)
    except (Exception, SystemExit):  # the run itself will report the model's errors
        return None
    owned = {p for layer in prepared.layers for p in layer.module.parameters(recurse=False)}
    weights = sum(p.numel() * p.element_size() for p in owned) if "param" in forward_kinds else 0
    return capture.nbytes + weights


def check_recording_size(prepared: Prepared, kinds: Iterable[str], max_bytes: int | None) -> None:
    """Log the size of a large recording before it is made, and reject one over ``max_bytes``.

    The code of a live module runs an extra time only if there is a limit.

    Raises:
        CheckFailed: the recording would take more than ``max_bytes``.
    """
    if max_bytes is None and prepared.loaded.source == LIVE:
        return
    expected = estimate_bytes(prepared, kinds)
    if expected is None:
        return
    if max_bytes is not None and expected > max_bytes:
        raise CheckFailed(
            f"Recording this takes {expected:,} bytes, more than the limit of {max_bytes:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )
    if expected >= LARGE:
        log.info("size: about %.1f GB will be recorded and written", expected / 1e9)
