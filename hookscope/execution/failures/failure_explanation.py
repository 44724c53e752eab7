"""From an exception in a forward pass to what is known of it, with what would help."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookscope.errors import ForwardError
from hookscope.execution.failures.definition import Definition, find_definition
from hookscope.execution.failures.expectations import Mismatch, kind_of, mismatches
from hookscope.execution.failures.failed_call import CallObserver
from hookscope.execution.failures.frames import short_path
from hookscope.execution.failures.trials import (
    Outcome,
    Trials,
    fitting_shape,
    on_meta_device,
    outcome_of,
    quiet,
    replace_layer,
    run_once,
    single_tensor,
    with_shape,
)
from hookscope.execution.forward import grad_mode, preserve_model_state
from hookscope.execution.prepare import Prepared
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import submodule
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.model_spec import FILE, LIVE


@contextmanager
def explain_forward_errors(prepared: Prepared) -> Iterator[None]:
    """Complete what a ForwardError from the block tells; enter it before all that is to be undone.

    The model runs again to that end, as described at :func:`explain_failure`.
    """
    try:
        yield
    except ForwardError as error:
        with suppress(Exception):  # the error itself matters more than what explains it
            explain_failure(error, prepared)
        raise


def explain_failure(error: ForwardError, prepared: Prepared) -> None:
    """Add to ``error`` the calls of all layers that ran, and changes that would help.

    The model runs once more from the same seed on the same input, with hooks on all layers, and is
    left as it was. A live module, whose code is not run without need, runs as a copy on the meta
    device. What did not fail in the same way tells nothing.
    """
    failure, exception = error.failure, error.exception
    if failure is None or not isinstance(exception, Exception) or _runs_with_others():
        return
    failed = outcome_of(prepared.module, exception)
    with suppress(Exception):
        failure = _with_calls(failure, failed, prepared, error.with_grad)
    if failure.complete:  # a model that fails otherwise the next time runs for many reasons
        with suppress(Exception):
            failure = replace(failure, fixes=tuple(_fixes(failed, prepared, error.with_grad)))
    error.failure = failure


def _runs_with_others() -> bool:
    """Whether other processes would wait for a pass of this one, or this one for theirs."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _with_calls(
    failure: ForwardFailure, failed: Outcome, prepared: Prepared, grad: bool
) -> ForwardFailure:
    short_of_memory = isinstance(failed.error, MemoryError | torch.OutOfMemoryError)
    copied = prepared.loaded.source == LIVE or short_of_memory
    run = on_meta_device(prepared) if copied else prepared
    model, observer = run.module, CallObserver(run.module)
    guard = preserve_model_state(model, train=run.train, seed=run.seed)
    with quiet(), guard, grad_mode(grad), forward_interventions(run.plan, model, run.seed):
        try:
            with observer:
                run.run(*run.fresh_call())
            return failure
        except Exception as again:
            if not outcome_of(model, again).is_like(failed) or observer.failed is None:
                return failure
    device = str(prepared.device)
    ran = tuple(_on(call, device) if copied else call for call in observer.ran)
    # A layer whose parent calls its forward directly has no call of its own.
    number = observer.failed.call if observer.failed.layer == failed.layer else 0
    known = replace(failure.failed, call=number)
    return replace(failure, failed=known, ran=ran, complete=True)


def _on(call: LayerCall, device: str) -> LayerCall:
    """The call as it was in the true run, on its device."""

    def moved(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(replace(t, device=device if t.device == "meta" else t.device) for t in tensors)

    return replace(call, inputs=moved(call.inputs), outputs=moved(call.outputs))


def _fixes(failed: Outcome, prepared: Prepared, grad: bool) -> Iterator[str]:
    """Changes of the model and of its input, each tried."""
    if prepared.plan or prepared.generate is not None:
        return
    layer = submodule(prepared.module, failed.layer)
    ghost = on_meta_device(prepared)
    shown = run_once(ghost).is_like(failed)  # else the copy cannot be asked
    live = prepared.loaded.source == LIVE
    if layer is not None and failed.call is not None and (shown or not live):
        for wrong in mismatches(layer, failed.call, str(failed.error)):
            if wrong.setting and (fix := _other_layer(wrong, failed, layer, prepared, grad)):
                yield fix
                break
    if shown and (fix := _other_input(failed, prepared, ghost, grad)):
        yield fix


def _other_layer(
    wrong: Mismatch, failed: Outcome, layer: nn.Module, prepared: Prepared, grad: bool
) -> str:
    """The change of a layer's size that makes it fit; empty if it does not help or is not known."""
    if not kind_of(layer) or getattr(layer, "_hookscope_class", None) is not None:
        return ""  # it is a file's, and cannot be changed there
    loaded, live = prepared.loaded, prepared.loaded.source == LIVE
    if loaded.weights.blake3 is not None:  # they would not fit any more
        return ""
    file = loaded.word if loaded.word.endswith(".py") else loaded.word.rpartition(":")[0]
    made = find_definition(prepared.module, failed.layer, file if loaded.source == FILE else "")
    if made is None and not live:
        return ""
    run = on_meta_device(prepared) if live else prepared
    old = submodule(run.module, failed.layer)
    assert old is not None
    other = _of_size(old, wrong)
    with replace_layer(run.module, old, other):
        after = run_once(run, grad)
    if after.layer == failed.layer:
        return ""
    checked = (
        f"{failed.layer} then runs, and {after.layer} fails next"
        if after.layer
        else "the model then runs to its end"
    )
    if made is None:
        return (
            f"make {failed.layer} with {wrong.setting}={_code(wrong.got)} in place of"
            f" {_code(wrong.wanted)}. Checked: {checked}."
        )
    return (
        f"in {short_path(made.file)}, line {made.line}, write {_rewritten(made, layer, wrong)} in"
        f" place of {made.text}. Checked: {checked}."
    )


def _of_size(layer: nn.Module, wrong: Mismatch) -> nn.Module:
    """A layer like another one, but for the argument that did not fit."""
    names = inspect.signature(nn.RNNBase if isinstance(layer, nn.RNNBase) else type(layer))
    kept: dict[str, Any] = {}
    for name in names.parameters:
        if name != "mode" and hasattr(layer, name):
            value = getattr(layer, name)
            if name == "bias" and not isinstance(value, bool):
                value = value is not None
            kept[name] = value
    kept[wrong.setting] = wrong.got
    weight = next(layer.parameters(recurse=False))
    made: nn.Module = type(layer)(**kept, device=weight.device, dtype=weight.dtype)
    return made.train(layer.training)


def _rewritten(made: Definition, layer: nn.Module, wrong: Mismatch) -> str:
    """The call that makes a layer, with the other size."""
    call = ast.parse(made.text, mode="eval").body
    assert isinstance(call, ast.Call)
    value = ast.parse(_code(wrong.got), mode="eval").body
    names = list(inspect.signature(type(layer)).parameters)
    if isinstance(layer, nn.RNNBase):
        names = ["input_size", "hidden_size"]
    place = names.index(wrong.setting)
    if place < len(call.args):
        call.args[place] = value
    else:
        call.keywords = [k for k in call.keywords if k.arg != wrong.setting]
        call.keywords.insert(0, ast.keyword(wrong.setting, value))
    return ast.unparse(call)


def _code(value: Any) -> str:
    return repr(value)


def _other_input(failed: Outcome, prepared: Prepared, ghost: Prepared, grad: bool) -> str:
    """A shape of input on which the model runs; empty where none was found."""
    tensor = single_tensor(prepared.value)
    if tensor is None:
        return ""
    shape = tuple(tensor.shape)
    trials = Trials(ghost, lambda other: run_once(with_shape(ghost, other)))
    own = None
    with suppress(Exception):
        offered = single_tensor(prepared.loaded.example(0))
        own = None if offered is None else tuple(offered.shape)
    found = fitting_shape(trials, shape, failed, None if own == shape else own)
    if found is None:
        return ""
    # A copy that was run before may have kept something; and shapes alone are not all.
    last = on_meta_device(prepared) if prepared.loaded.source == LIVE else prepared
    if run_once(with_shape(last, found), grad).layer:
        return ""
    option = _option(prepared, shape, found)
    return f"use an input of {_text(found)}{option}. Checked: the model then runs to its end."


def _option(prepared: Prepared, shape: tuple[int, ...], found: tuple[int, ...]) -> str:
    """The option that gives the model such an input, as the end of a sentence."""
    words = {source.get("word") for source in prepared.sources}
    sized = prepared.recipe is not None and prepared.recipe.tuned is not None
    if sized and len(found) == len(shape) == 4 and found[:2] == shape[:2]:
        return f": --size {found[2]}x{found[3]}"
    return f": --shape {_text(found)}" if words <= {"noise"} else ""


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
