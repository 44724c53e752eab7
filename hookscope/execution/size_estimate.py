"""The size of a recording and the order of its calls, found before it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain

from torch import Tensor

from hookscope.errors import CheckFailed
from hookscope.execution.prepare import Prepared
from hookscope.execution.trial_pass import CallOrder, TrialModel, TrialPass
from hookscope.specs.model_spec import LIVE, TIMM, TORCHVISION
from hookscope.specs.tensor_key import PARAM_GRAD
from hookscope.tensors.nested import as_call, opaque_types, walk

log = logging.getLogger("hookscope")

LARGE = 10**9  # bytes from which on the size of a recording is logged before it is made

# A pass on the meta device makes PyTorch import its compiler, which takes as long as half of
# ``import torch``. torchvision, which timm needs too, imports it anyway. For other models the pass
# is made without a request if the model or its input has so many bytes that it may be worth it.
_COMPILER_IS_LOADED = (TORCHVISION, TIMM)
_LARGE_MODEL, _LARGE_INPUT = 1 << 28, 1 << 23


def trial_pass(prepared: Prepared, kinds: Iterable[str], *, follow: bool) -> TrialPass | None:
    """Run a copy of the model on the meta device; return None if that fails.

    Caches and counters of the model do not change.
    """
    forward_kinds = {kind.removesuffix(".grad") for kind in kinds}
    try:
        model = TrialModel(
            prepared.module,
            prepared.layers,
            train=prepared.train,
            seed=prepared.seed,
            follow=follow,
        )
        return model.run(
            forward_kinds - {"param"},
            prepared.value,
            caches=forward_kinds == set(kinds),  # as in a recording without gradients
        )
    except (Exception, SystemExit):  # the run itself will report the model's errors
        return None


def check_recording_size(
    prepared: Prepared,
    kinds: Iterable[str],
    max_bytes: int | None,
    *,
    stop: bool | None = False,
) -> CallOrder | None:
    """Log the size of a large recording before it is made, and reject one over ``max_bytes``.

    The code of a live module runs an extra time only if there is a limit or the run is to stop, and
    so does that of a small model on a small input.
    """
    kinds = frozenset(kinds)
    measured = not prepared.positions  # they depend on values
    if prepared.loaded.source == LIVE:
        measured = measured and max_bytes is not None
        # A pass without values must not write to an object that the run itself will get.
        stop = stop and not opaque_types(as_call(prepared.value))
    if prepared.generate is not None or not (measured or stop):
        return None
    if max_bytes is None and not stop and _is_small(prepared):
        return None
    trial = trial_pass(prepared, kinds, follow=stop is not False)
    if trial is None:
        return None
    if measured:
        _check_bytes(trial.capture.nbytes + _weight_bytes(prepared, kinds), max_bytes)
    return None if stop is False else trial.order


def _is_small(prepared: Prepared) -> bool:
    """Whether a pass would take longer than a run of the model, most likely."""
    module = prepared.module
    return (
        prepared.loaded.source not in _COMPILER_IS_LOADED
        and _bytes(chain(module.parameters(), module.buffers())) < _LARGE_MODEL
        and _bytes(tensor for _, tensor in walk(as_call(prepared.value))) < _LARGE_INPUT
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _weight_bytes(prepared: Prepared, kinds: frozenset[str]) -> int:
    """The size of the gradients of parameters."""
    if PARAM_GRAD not in kinds:
        return 0
    return _bytes({p for layer in prepared.layers for p in layer.module.parameters(recurse=False)})


def _check_bytes(expected: int, max_bytes: int | None) -> None:
    if max_bytes is not None and expected > max_bytes:
        raise CheckFailed(
            f"Recording this takes {expected:,} bytes, more than the limit of {max_bytes:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )
    if expected >= LARGE:
        log.info("size: about %.1f GB will be recorded and written", expected / 1e9)
