"""The explanation of a failed forward pass: the calls before it, and fixes that were tried."""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hookscope.errors import ForwardError
from hookscope.execution.failures import frames
from hookscope.execution.failures.expectations import Mismatch, kind_of, mismatches
from hookscope.execution.failures.trials import (
    Outcome,
    Trials,
    fitting_shape,
    is_distributed,
    on_meta_device,
    outcome_of,
    quiet,
    replace_layer,
    run_once,
    single_tensor,
    with_shape,
)
from hookscope.execution.prepare import Prepared
from hookscope.files.signatures import signature_of
from hookscope.files.words import shape_text
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import own_parameters, submodule
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.literal_arguments import split_call
from hookscope.specs.model_spec import FILE, LIVE
from hookscope.tensors.grad_mode import grad_mode

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Definition:
    """The call that makes a layer: its file, its line and its text on one line."""

    file: str
    line: int
    text: str


def find_definition(model: nn.Module, name: str, file: str = "") -> Definition | None:
    """Return the call that makes the layer ``name`` of ``model``; None unless it is certain.

    It is what the parent's class assigns to that attribute; else the only call in the user's file
    of the layer's class with the layer's arguments.
    """
    layer = submodule(model, name)
    if layer is None:
        return None
    calls: list[tuple[str, ast.Call]] = []
    parent, _, last = name.rpartition(".")
    owner = submodule(model, parent)
    if last.isdecimal() and isinstance(owner, nn.Sequential):
        grandparent, _, attribute = parent.rpartition(".")
        owner, index = submodule(model, grandparent), int(last)
    else:
        attribute, index = last, None
    classes = [(path, kind) for kind in type(owner).__mro__ if (path := _user_file(kind))]
    # A line that makes layers of several modules must not be changed for one of them.
    if attribute and sum(type(module) is type(owner) for module in model.modules()) == 1:
        assigned = (
            c for path, kind in classes for c in _assigned_calls(path, kind, attribute, index)
        )
        calls = [(path, call) for path, call in assigned if _makes(call, layer)]
    if len(calls) != 1:
        paths = [os.path.abspath(file)] if file else []
        files = dict.fromkeys((*paths, *(path for path, _ in classes)))
        candidates = ((path, call) for path in files for call in _calls(frames.parsed(path)))
        calls = [(path, call) for path, call in candidates if _makes(call, layer, strictly=True)]
        if len(calls) != 1 or sum(_makes(calls[0][1], m) for m in model.modules()) != 1:
            return None
    [(path, call)] = calls
    return Definition(path, call.lineno, ast.unparse(call))


def _user_file(kind: type) -> str:
    """The user's file with the ``__init__`` of a class; empty if there is none."""
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    file = code.co_filename if code is not None else ""
    return "" if not file or frames.is_library(file) or frames.is_installed(file) else file


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _assigned_calls(
    file: str, owner: type, attribute: str, index: int | None
) -> Iterator[tuple[str, ast.Call]]:
    """The calls assigned to ``self.ATTRIBUTE`` in a class, or an entry of the Sequential there."""
    for scope in ast.walk(frames.parsed(file)):
        if not isinstance(scope, ast.ClassDef) or scope.name != owner.__name__:
            continue
        for node in ast.walk(scope):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(isinstance(t, ast.Attribute) and t.attr == attribute for t in targets):
                continue
            value = node.value
            if index is not None:
                value = _entry(value, index)
            if isinstance(value, ast.Call):
                yield file, value


def _entry(value: ast.expr | None, index: int) -> ast.expr | None:
    """An argument of ``nn.Sequential(...)``; None if arguments are unpacked before it."""
    if not isinstance(value, ast.Call) or frames.called_name(value.func) != "Sequential":
        return None
    entries = value.args[: index + 1]
    if len(entries) <= index or any(isinstance(entry, ast.Starred) for entry in entries):
        return None
    return entries[index]


def _makes(call: ast.Call, layer: nn.Module, *, strictly: bool = False) -> bool:
    """Whether a call may have made ``layer``: its class and numeric arguments, if any, agree."""
    kind = type(layer)
    if frames.called_name(call.func) != kind.__name__:
        return False
    positional = zip(signature_of(kind).parameters, call.args, strict=False)
    arguments = {key: _number(node) for key, node in positional}
    arguments |= {keyword.arg: _number(keyword.value) for keyword in call.keywords if keyword.arg}
    known = [key for key, value in arguments.items() if value is not None]
    known = [key for key in known if isinstance(getattr(layer, key, None), int)]
    if strictly and not known:
        return False
    return all(getattr(layer, key) == arguments[key] for key in known)


def _number(node: ast.expr) -> int | None:
    """The value of an expression of integers, such as ``4 * 5 * 5``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    return _ARITHMETIC[type(node.op)](left, right)


@contextmanager
def explain_forward_errors(prepared: Prepared) -> Iterator[None]:
    """Add an explanation to a ForwardError from the block, for which the model runs again.

    Enter this context before those that change the state of the model, which is then restored.
    """
    try:
        yield
    except ForwardError as error:
        with suppress(Exception):  # the error itself matters more than its explanation
            explain_failure(error, prepared)
        raise


def explain_failure(error: ForwardError, prepared: Prepared) -> None:
    """Add to ``error`` the calls of all layers that ran, and fixes, from further runs of the model.

    A live module runs as a copy on the meta device, because its code may have side effects.
    """
    failure, exception = error.failure, error.exception
    if failure is None or not isinstance(exception, Exception) or is_distributed():
        return
    failed = outcome_of(prepared.module, exception)
    with suppress(Exception):
        failure = _with_calls(failure, failed, prepared, error.with_grad)
    if failure.complete:  # if the failure is not reproducible, a fix proves nothing
        with suppress(Exception):
            failure = replace(failure, fixes=tuple(_find_fixes(failed, prepared, error.with_grad)))
    error.failure = failure


def _with_calls(
    failure: ForwardFailure, failed: Outcome, prepared: Prepared, grad: bool
) -> ForwardFailure:
    out_of_memory = isinstance(failed.error, MemoryError | torch.OutOfMemoryError)
    copied = prepared.loaded.source == LIVE or out_of_memory
    run = on_meta_device(prepared) if copied else prepared
    model, observer = run.module, frames.CallObserver(run.module)
    edited = forward_interventions(run.interventions, model, run.seed)
    with quiet(), run.preserved(), grad_mode(grad), edited:
        try:
            with observer:
                run.run(*run.fresh_call())
            return failure
        except Exception as error_again:
            if not outcome_of(model, error_again).is_like(failed) or observer.failed is None:
                return failure
    device = str(prepared.device)
    ran = tuple(_on_device(call, device) if copied else call for call in observer.ran)
    # A layer has no call if its parent calls its ``forward`` directly.
    number = observer.failed.call if observer.failed.layer == failed.layer else 0
    failed_call = replace(failure.failed, call=number)
    return replace(failure, failed=failed_call, ran=ran, complete=True)


def _on_device(call: LayerCall, device: str) -> LayerCall:
    """The call with the device of the run that failed in place of meta."""

    def moved(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(replace(t, device=device if t.device == "meta" else t.device) for t in tensors)

    return replace(call, inputs=moved(call.inputs), outputs=moved(call.outputs))


def _find_fixes(failed: Outcome, prepared: Prepared, grad: bool) -> Iterator[str]:
    """Changes of the model and of its input, each tried."""
    if prepared.interventions or prepared.generate is not None:
        return
    layer = submodule(prepared.module, failed.layer)
    meta_run = on_meta_device(prepared)
    reproducible = run_once(meta_run).is_like(failed)  # else the copy cannot be asked
    is_live = prepared.loaded.source == LIVE
    if layer is not None and failed.call is not None and (reproducible or not is_live):
        for mismatch in mismatches(layer, failed.call, str(failed.error)):
            if mismatch.setting and (fix := _fix_layer(mismatch, failed, layer, prepared, grad)):
                yield fix
                break
    if reproducible and (fix := _fix_input(failed, prepared, meta_run, grad)):
        yield fix


def _fix_layer(
    mismatch: Mismatch, failed: Outcome, layer: nn.Module, prepared: Prepared, grad: bool
) -> str:
    """The change of a layer's size that fits its input; empty if there is none that helps."""
    if not kind_of(layer) or getattr(layer, "_hookscope_class", None) is not None:
        return ""  # a layer of a scripted or exported file cannot be changed
    loaded, is_live = prepared.loaded, prepared.loaded.source == LIVE
    if loaded.weights.file_hash is not None:  # they would no longer fit
        return ""
    spec, _ = split_call(loaded.spec)
    file = spec if spec.endswith(".py") else spec.rpartition(":")[0]
    definition = find_definition(
        prepared.module, failed.layer, file if loaded.source == FILE else ""
    )
    if definition is None and not is_live:
        return ""
    run = on_meta_device(prepared) if is_live else prepared
    old = submodule(run.module, failed.layer)
    assert old is not None
    other = _resized_layer(old, mismatch)
    with replace_layer(run.module, old, other):
        after = run_once(run, grad)
    if after.layer == failed.layer:
        return ""
    checked = (
        f"{failed.layer} then runs, and {after.layer} fails next"
        if after.layer
        else "the model then runs"
    )
    if definition is None:
        return (
            f"create {failed.layer} with {mismatch.setting}={mismatch.got!r} instead of"
            f" {mismatch.wanted!r}. Checked: {checked}."
        )
    call = _rewritten_call(definition, layer, mismatch)
    return (
        f"in {frames.short_path(definition.file)}, line {definition.line}, write {call} instead"
        f" of {definition.text}. Checked: {checked}."
    )


def _resized_layer(layer: nn.Module, mismatch: Mismatch) -> nn.Module:
    """A copy of a layer with the size that fits its input."""
    names = signature_of(nn.RNNBase if isinstance(layer, nn.RNNBase) else type(layer))
    arguments: dict[str, Any] = {}
    for name in names.parameters:
        if name != "mode" and hasattr(layer, name):
            value = getattr(layer, name)
            if name == "bias" and not isinstance(value, bool):
                value = value is not None
            arguments[name] = value
    arguments[mismatch.setting] = mismatch.got
    weight = next(iter(own_parameters(layer).values()))
    resized: nn.Module = type(layer)(**arguments, device=weight.device, dtype=weight.dtype)
    return resized.train(layer.training)


def _rewritten_call(definition: Definition, layer: nn.Module, mismatch: Mismatch) -> str:
    """The call that makes a layer, with the size that fits its input."""
    call = ast.parse(definition.text, mode="eval").body
    assert isinstance(call, ast.Call)
    value = ast.parse(repr(mismatch.got), mode="eval").body
    names = list(signature_of(type(layer)).parameters)
    if isinstance(layer, nn.RNNBase):
        names = ["input_size", "hidden_size"]
    index = names.index(mismatch.setting)
    if index < len(call.args):
        call.args[index] = value
    else:
        call.keywords = [k for k in call.keywords if k.arg != mismatch.setting]
        call.keywords.insert(0, ast.keyword(mismatch.setting, value))
    return ast.unparse(call)


def _fix_input(failed: Outcome, prepared: Prepared, meta_run: Prepared, grad: bool) -> str:
    """The fix of the input's shape; empty if none was found."""
    tensor = single_tensor(prepared.value)
    if tensor is None:
        return ""
    shape = tuple(tensor.shape)
    trials = Trials(meta_run, lambda other: run_once(with_shape(meta_run, other)))
    preferred = None
    with suppress(Exception):
        example = single_tensor(prepared.loaded.example(0))
        preferred = None if example is None else tuple(example.shape)
    fitting = fitting_shape(trials, shape, failed, None if preferred == shape else preferred)
    if fitting is None:
        return ""
    # The meta copy may have state from earlier runs, and has no values: run the model itself.
    last = on_meta_device(prepared) if prepared.loaded.source == LIVE else prepared
    if run_once(with_shape(last, fitting), grad).layer:
        return ""
    option = _option(prepared, shape, fitting)
    return f"use an input of {shape_text(fitting)}{option}. Checked: the model then runs."


def _option(prepared: Prepared, shape: tuple[int, ...], fitting: tuple[int, ...]) -> str:
    """The option for an input of this shape, as the end of a sentence."""
    specs = {source.get("spec") for source in prepared.sources}
    sized = prepared.recipe is not None and prepared.recipe.tuned is not None
    if sized and len(fitting) == len(shape) == 4 and fitting[:2] == shape[:2]:
        return f": --size {fitting[2]}x{fitting[3]}"
    return f": --shape {shape_text(fitting)}" if specs <= {"noise"} else ""
