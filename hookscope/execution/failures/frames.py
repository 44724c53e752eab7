"""A failed call: its arguments, the line of the user's file, and the calls before it."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sysconfig
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.failures.expectations import Call, mismatches
from hookscope.files.frame_variables import variables_of
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.files.signatures import signature_of
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.nested import walk

_GENERATED = ("<eval_with_key>", "<TorchScript")  # by torch.fx, and by sources/torchscript

_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def arguments_at(module: nn.Module, traceback: TracebackType | None) -> Call | None:
    """Return the arguments of the last call of ``module`` in ``traceback``.

    None if its parent calls a method of it, such as ``forward``, in place of the module.
    """
    call: Call | None = None
    for frame, _ in walk_tb(traceback):
        variables = variables_of(frame)
        # Module._call_impl and its helpers. The innermost has the arguments that hooks returned.
        if frame.f_code.co_filename != nn.Module.__call__.__code__.co_filename:
            continue
        # Not ``<= variables.keys()``: in Python 3.13 these keys are a list.
        if variables.get("self") is module and "args" in variables and "kwargs" in variables:
            call = variables["args"], variables["kwargs"]
    return call


def describe_tensors(module: nn.Module, call: Call) -> tuple[TensorInfo, ...]:
    """Return descriptions of the tensors in the arguments of a call, by parameter names."""
    args, kwargs = call
    names: list[str] = []
    with suppress(TypeError, ValueError):  # a forward without a signature
        parameters = signature_of(module.forward).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, _EITHER)]
    numbered = [f"input.{i}" for i in range(len(names), len(args))]
    return describe_each(dict(zip([*names, *numbered], args, strict=False)) | kwargs)


def describe_each(values: Any) -> tuple[TensorInfo, ...]:
    """Return a description of every tensor in ``values``, by its path."""
    return tuple(_describe(".".join(path), tensor) for path, tensor in walk(values))


def _describe(name: str, tensor: Tensor) -> TensorInfo:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorInfo(name, tuple(tensor.shape), dtype, str(tensor.device))


def user_line(traceback: TracebackType | None) -> tuple[FrameType, int] | None:
    """Return the frame and line of the user's code nearest to the failure.

    Code of installed packages, such as torchvision, counts if there is no other.
    """
    installed: tuple[FrameType, int] | None = None
    user: tuple[FrameType, int] | None = None
    for frame, line in walk_tb(traceback):
        file = frame.f_code.co_filename
        if file.startswith(_GENERATED) or not source_line(file, line) or is_library(file):
            continue
        if is_installed(file):
            installed = frame, line
        else:
            user = frame, line
    return user or installed


def source_line(file: str, line: int) -> str:
    """Return a line of a file, or of a notebook cell, without leading and trailing spaces."""
    linecache.checkcache(file)
    return linecache.getline(file, line).strip()


def parsed(file: str) -> ast.Module:
    """Return the syntax tree of a file, or of a notebook cell; an empty one if there is none."""
    linecache.checkcache(file)
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def called_name(function: ast.AST) -> str:
    """Return the last name of what is called or read: ``relu`` of ``F.relu``; empty without one."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def short_path(file: str) -> str:
    """Return the path relative to the working folder, if the file is in it."""
    with suppress(ValueError, OSError):  # on another drive; a folder that is gone
        short = os.path.relpath(file)
        return file if short.startswith(os.pardir) else short
    return file


def is_library(file: str) -> bool:
    """Whether a file is part of PyTorch, of hookscope or of Python itself."""
    return _is_in(file, _LIBRARIES) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether a file belongs to a package that is installed, other than PyTorch and hookscope."""
    if _is_in(file, _OURS):
        return False
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))


def _is_in(file: str, folders: tuple[str, ...]) -> bool:
    return os.path.realpath(file).startswith(folders)


def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


_OURS = (_folder(os.path.dirname(torch.__file__)), _folder(str(Path(__file__).parents[2])))

_LIBRARIES = (*_OURS, _folder(sysconfig.get_path("stdlib")))


def variables_at(frame: FrameType, line: int) -> tuple[TensorInfo, ...]:
    """Return descriptions of the tensors that a line names: variables and their attributes."""
    tensors: dict[str, Tensor] = {}
    variables = variables_of(frame)
    for name in _names_in(frame.f_code.co_filename, line):
        owner, _, attribute = name.partition(".")
        value = variables.get(owner)
        if attribute and isinstance(value, nn.Module):
            value = value._parameters.get(attribute, value._buffers.get(attribute))
        elif attribute:
            continue
        if isinstance(value, Tensor):
            tensors.setdefault(name, value)
    return describe_each(tensors)


def _names_in(file: str, line: int) -> tuple[str, ...]:
    """The names that are read in a line, with at most one attribute: ``x``, ``self.w``."""
    names: list[str] = []
    for node in ast.walk(parsed(file)):
        if getattr(node, "lineno", 0) != line or not isinstance(node, ast.Name | ast.Attribute):
            continue
        if not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node.value, ast.Name):
            names.append(f"{node.value.id}.{node.attr}")
    return tuple(dict.fromkeys(names))


class CallObserver(CallSubscriber, SignalSafeContext["CallObserver"]):
    """Records the calls of all layers of a model while the ``with`` block runs."""

    def __init__(self, model: nn.Module) -> None:
        self.ran: list[LayerCall] = []
        self.failed: LayerCall | None = None
        self._layers = layers_of(model)
        self._calls = CallRegistry(model)

    def _enter(self) -> CallObserver:
        self._calls.subscribe(self, self._layers)
        return self

    def _leave(self, *error: object) -> None:
        self._calls.unsubscribe(self)

    def before_call(self, call: ModuleCall) -> LayerCall:
        """Note the inputs of a call."""
        inputs = describe_tensors(call.module, (call.args, call.kwargs))
        return layer_call(call.layer, call.number, inputs)

    def after_call(self, call: ModuleCall, begun: LayerCall) -> None:
        """Note the outputs of a call, or that it failed."""
        if call.failed:
            self.failed = self.failed or begun
            return
        self.failed = None  # the model caught what had failed before
        self.ran.append(replace(begun, outputs=describe_each(call.output)))


def layer_call(layer: Layer, number: int, inputs: Any = (), outputs: Any = ()) -> LayerCall:
    """Return the call ``number`` of ``layer`` as plain data."""
    arguments = ""
    with suppress(Exception):  # extra_repr may be user code
        arguments = layer.module.extra_repr()
    return LayerCall(layer.name, layer.type, number, arguments, tuple(inputs), tuple(outputs))


def describe_failure(
    layer: Layer, error: BaseException, capture: Capture | None, known: str
) -> ForwardFailure:
    """Return a description of a failure, without another run."""
    call = arguments_at(layer.module, error.__traceback__)
    inputs = describe_tensors(layer.module, call) if call else ()
    faults = mismatches(layer.module, call, str(error))
    failure = ForwardFailure(
        failed=layer_call(layer, 0, inputs),
        ran=_recorded_calls(capture),
        expected=known or " ".join(mismatch.text for mismatch in faults),
    )
    location = user_line(error.__traceback__)
    if location is None:
        return failure
    frame, line = location
    file = frame.f_code.co_filename
    return replace(
        failure,
        variables=variables_at(frame, line),
        file=short_path(file),
        line=line,
        function=frame.f_code.co_name,
        source=source_line(file, line),
    )


def _recorded_calls(capture: Capture | None) -> tuple[LayerCall, ...]:
    """The calls with a recorded output, in the order in which they returned."""
    outputs: dict[tuple[str, str, int], list[TensorInfo]] = {}
    for record in capture.records if capture is not None else ():
        if record.kind == OUTPUT:
            path = record.what.partition(".")[2]
            info = TensorInfo(path, record.shape, record.dtype, record.device)
            outputs.setdefault((record.module, record.type, record.call), []).append(info)
    return tuple(LayerCall(*call, outputs=tuple(infos)) for call, infos in outputs.items())
