"""Checks of a run: the output without hooks is the same, and every layer ran."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import CheckFailed, ForwardError, HookscopeError
from hookscope.execution.forward import run_without_hooks
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import Prepared
from hookscope.files.shell_words import quote_word
from hookscope.hooks.capture import Capture
from hookscope.hooks.recorder import Recorder
from hookscope.tensors.nested import bits_of, walk

log = logging.getLogger("hookscope")


def verify_output_unchanged(
    prepared: Prepared, output: Any, *, excuse_noise: bool = False, recorded: int = 0
) -> None:
    """Run the model again with its interventions only; check that the output is bit-identical.

    Hooks and function modes disable PyTorch's fast path of attention, which a note then says.
    """
    with second_run(recorded):
        _compare_outputs(prepared, output, excuse_noise)


def _compare_outputs(prepared: Prepared, output: Any, excuse_noise: bool) -> None:
    without_hooks = run_without_hooks(prepared)
    different = first_difference(output, without_hooks)
    if not different:
        return
    with disable_mha_fast_path():
        slow = run_without_hooks(prepared)
    if not first_difference(output, slow):
        log.info(
            "attention: run without PyTorch's fast path, which hooks and --ops disable. A run"
            " without hooks and without that path is bit-identical; with the path it differs%s",
            _difference_text(output, without_hooks),
        )
        return
    if excuse_noise and first_difference(without_hooks, run_without_hooks(prepared)):
        log.warning(
            "two runs of the model without hooks differ, so it is unknown whether hooks change its"
            " output"
        )
        return
    message = f"A second run without hooks gave a different result: {different} differs."
    if reason := getattr(prepared.module, "_hookscope_variation", ""):
        raise CheckFailed(message, f"Nothing was saved. {reason}")
    raise CheckFailed(
        message,
        "The model is not deterministic, or it depends on tensor identity (such as an in-place"
        " change through an alias). Nothing was saved. Try fewer layers, or another --device.",
    )


@contextmanager
def second_run(recorded: int) -> Iterator[None]:
    """Add to the error of a model in the block that the run before it succeeded."""
    try:
        yield
    except ForwardError as error:
        count = f" and recorded {recorded} tensor{'s' * (recorded != 1)}" if recorded else ""
        raise ForwardError(
            f"The first run succeeded{count}. The second run, with which it is compared, failed:"
            f" {error.message}",
            error.layer,
            recorded,
            "Nothing was saved. The model does not behave the same in every call: it may count its"
            " calls, or store a value for the next one. In Python, hookscope.record() records a"
            " single run.",
        ) from error


def first_difference(output: Any, again: Any) -> str:
    """Return the name of the first tensor in which two outputs differ; empty if there is none."""
    first, second = list(walk(output)), list(walk(again))
    if [path for path, _ in first] != [path for path, _ in second]:
        return "the structure of the output"
    for (path, a), (_, b) in zip(first, second, strict=True):
        if not bit_identical(a, b):
            return ".".join(("output", *path))
    return ""


def _difference_text(output: Any, again: Any) -> str:
    """The end of a sentence that two outputs differ: by how much."""
    pairs = [(a, b) for (_, a), (_, b) in zip(walk(output), walk(again), strict=False) if a.numel()]
    if any(a.shape != b.shape for a, b in pairs):
        return " in shape"
    pairs = [(a.to(torch.complex128), b.to(torch.complex128)) for a, b in pairs]
    return f" by {max((float((a - b).abs().max()) for a, b in pairs), default=0.0):.2g}"


def bit_identical(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(bits_of(a), bits_of(b))


def check_single_thread(recorder: Recorder, why: str) -> None:
    """Check that no other thread called the model during a run that changed its state."""
    if why and recorder.called_elsewhere:
        raise HookscopeError(
            f"Another thread called the model during the run, which {why}. The result of that call"
            " may be wrong.",
            "Do not call the model from other threads during the run, or copy it first"
            " (copy.deepcopy). hookscope.record() does not change the model.",
        )


def check_all_ran(capture: Capture) -> None:
    """Check that every matched layer ran."""
    not_executed, matched = capture.coverage.not_executed, capture.coverage.matched
    if not_executed:
        first = not_executed[0]
        raise CheckFailed(
            f"{len(not_executed)} of {matched} matched layers never ran, first {first.module}"
            f" ({first.type}): {first.reason}.",
            f"Nothing was written. Leave them out with --layer {quote_word('!NAME')}, or drop"
            " --strict.",
        )
