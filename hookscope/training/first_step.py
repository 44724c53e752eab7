"""What the first step of a training script is made of: the script runs until it calls its model."""

from __future__ import annotations

import gc
import logging
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hookscope.errors import FAILED, RequestError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.signatures import signature_of
from hookscope.hooks.process_hooks import around_outer_calls
from hookscope.sources.wrappers import class_name, unwrapped
from hookscope.specs.choices import OPTIMIZERS
from hookscope.specs.model_spec import end_sentence
from hookscope.training.called_models import CalledModels, ProgramStopped, RootCall, RootFollower

log = logging.getLogger("hookscope")
_NAME_THE_MODEL = "Give the model alone, as FILE.py:NAME, with --optimizer."


class ScriptFailed(RequestError):
    """A training script raised before its first step."""

    exit_code = FAILED


@dataclass(frozen=True)
class FirstStep:
    """The model, its input, the optimizer and autocast of the first step of a script."""

    module: nn.Module
    value: tuple[tuple[Any, ...], dict[str, Any]]
    optimizer: str
    opt_args: dict[str, Any]
    autocast: str | None


class _FirstCall(RootFollower):
    """Ends the program where a model is called in training mode, with gradients."""

    call: RootCall | None = None
    autocast: str | None = None
    optimizers: Sequence[Optimizer] = ()

    def __init__(self) -> None:
        self._others = _optimizers()  # of this process, which called hookscope.memory

    def before_root(self, call: RootCall) -> None:
        if not (call.module.training and torch.is_grad_enabled()):
            return
        first = next(call.module.parameters(), None)
        device = "cpu" if first is None else first.device.type
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        self.call = call
        # They end with the program, unless they are held.
        others = {id(optimizer) for optimizer in self._others}
        self.optimizers = [x for x in _optimizers() if id(x) not in others]
        raise ProgramStopped(0)


def _optimizers() -> list[Optimizer]:
    return [x for x in gc.get_objects() if issubclass(type(x), Optimizer)]


def first_step(path: str) -> FirstStep:
    """Run a script until it first calls a model in training, and return what its step is made of.

    Until there the script does all that it does, such as reading data and making folders. What it
    prints goes to standard error.

    Raises:
        RequestError: it calls no model in training, trains two, or its optimizer is not known.
        ScriptFailed: it raised before.
    """
    follower = _FirstCall()
    undo = around_outer_calls(CalledModels(follower))
    try:
        with _as_main(path), redirect_stdout(sys.stderr):
            runpy.run_path(path, run_name="__main__")
    except SystemExit:  # its own, or that of the follower
        pass
    except Exception as error:
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == path]
        where = f" in line {lines[-1]}" if lines else ""
        raise ScriptFailed(
            f"{path} failed before its first step{where}: {type(error).__name__}:"
            f" {end_sentence(str(error) or 'no message')}",
            f"Run it with python {path}, and mend it first.",
        ) from error
    finally:
        undo()
    if follower.call is None:
        raise RequestError(
            f"{path} ended, and called no model in training mode with gradients.", _NAME_THE_MODEL
        )
    module, call = unwrapped(follower.call.module), follower.call
    optimizer = _optimizer_of(module, follower.optimizers, path)
    log.info("script: %s runs until it calls %s; its step is not run", path, class_name(module))
    known = [key for key in signature_of(type(optimizer)).parameters if key != "params"]
    chosen = {key: value for key, value in optimizer.defaults.items() if key in known}
    name = _known_name(optimizer)
    return FirstStep(module, (call.args, call.kwargs), name, chosen, follower.autocast)


def _optimizer_of(module: nn.Module, found: Sequence[Optimizer], path: str) -> Optimizer:
    """The optimizer that holds the parameters of a model; an error if it is not the only one."""
    own = {id(parameter) for parameter in module.parameters()}
    of_model = [one for one in found if own & _held(one)]
    model = class_name(module)
    if not of_model:
        raise RequestError(
            f"No optimizer of {path} holds the parameters of {model} when it is first called.",
            _NAME_THE_MODEL,
        )
    if len(found) > 1 or _held(of_model[0]) - own:
        raise RequestError(
            f"{path} trains more than {model}: its optimizers hold other parameters, or there are"
            " several, and a step of one model is predicted.",
            _NAME_THE_MODEL,
        )
    return of_model[0]


def _held(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _known_name(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    for name, known in OPTIMIZERS.items():
        if kind is getattr(torch.optim, known):
            return name
    raise RequestError(
        f"The optimizer {kind.__name__} is not one of torch.optim that is known:"
        f" {', '.join(OPTIMIZERS)}.",
        _NAME_THE_MODEL,
    )


@signal_safe_contextmanager
def _as_main(path: str) -> Iterator[None]:
    """Set the arguments and the path that Python sets for a script."""
    argv, paths = sys.argv, [*sys.path]
    sys.argv, sys.path[:0] = [path], [os.path.dirname(os.path.abspath(path))]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, paths
