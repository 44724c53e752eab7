"""Finds the models that a program calls: the modules called outside the call of another module."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from hookscope.files.frame_variables import variables_of
from hookscope.files.words import plural
from hookscope.hooks.torch_state import inside_backward
from hookscope.results.program_models import ProgramModel, ProgramModels, UnseenModel
from hookscope.sources.wrappers import class_name, unwrapped
from hookscope.training.found_models import (
    is_of_program,
    name_in_program,
    script_frames,
    unused_name,
)
from hookscope.training.script_messages import reported, say

MAX_MODELS = 500  # a program that makes a new one in each step has no end of them
FORWARD_CALLED = "its forward() is called, which calls no hooks; call the module itself"


class CalledModel:
    """A model that the program calls. It does not keep the module alive."""

    def __init__(self, name: str, outer: nn.Module, place: str) -> None:
        self.name = name
        self.calls = 0
        self.described = ProgramModel(name, class_name(unwrapped(outer)), place=place)
        self._outer = weakref.ref(outer)
        self._counting = threading.Lock()

    @property
    def outer(self) -> nn.Module | None:
        """The module that the program calls; None once it is deleted."""
        return self._outer()

    def count(self) -> int:
        """Count a call; return its number, from 1."""
        with self._counting:
            self.calls += 1
            return self.calls

    def describe(self) -> None:
        """Note the size, the place and the mode of the module, which has been called."""
        outer = self.outer
        if outer is None:
            return
        module = unwrapped(outer)
        known: Iterable[Tensor] = module.parameters()
        weights = [weight for weight in known if not is_lazy(weight)]
        self.described = replace(
            self.described,
            parameters=sum(weight.numel() for weight in weights),
            device=str(weights[0].device) if weights else "",
            dtype=str(weights[0].dtype).removeprefix("torch.") if weights else "",
            mode="train" if outer.training else "eval",
            wrapper="" if outer is module else class_name(outer),
        )

    @property
    def info(self) -> ProgramModel:
        """What is known of it now."""
        return replace(self.described, calls=self.calls)


@dataclass(eq=False)
class RootCall:
    """A call of a model by the program, while it runs."""

    model: CalledModel
    number: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class ProgramStopped(SystemExit):
    """Ends the program where it has called a model."""


class RootFollower:
    """What follows the calls of the models of a program. The base class only counts them.

    After ``stop_after`` calls the program ends with exit status 0.
    """

    def __init__(self, stop_after: int | None = None) -> None:
        self._stop_after = stop_after
        self._count = itertools.count(1)
        self._is_stopping = False

    def before_root(self, call: RootCall) -> None:
        """Act before a model is called."""
        if self._is_stopping:
            raise ProgramStopped(0)

    def after_root(self, call: RootCall, output: Any) -> None:
        """Act when the call has returned."""
        if self._stop_after is not None and next(self._count) == self._stop_after:
            self._is_stopping = True
            say(f"stopped the program after {plural(self._stop_after, 'call')} of a model.")
            raise ProgramStopped(0)

    def failed_root(self, call: RootCall, error: BaseException) -> None:
        """Act when the call has raised an exception."""


class CalledModels:
    """All models that the program has called; see ``around_outer_calls``."""

    def __init__(self, follower: RootFollower) -> None:
        self.models: list[CalledModel] = []
        self.unseen: dict[str, UnseenModel] = {}
        self._follower = follower
        self._known: weakref.WeakKeyDictionary[nn.Module, CalledModel | None]
        self._known = weakref.WeakKeyDictionary()
        self.on_end: Callable[[], None] = lambda: None  # called when a call of a model has ended
        self._adding = threading.RLock()

    def begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RootCall | None:
        """Count the call of a module; None if it is not one of a model of the program."""
        with reported("a call of a model is not followed"):
            model = self._find(module)
            if model is not None:
                call = RootCall(model, model.count(), module, args, kwargs)
                self._follower.before_root(call)
                return call
        return None

    def end(self, call: RootCall | None, output: Any) -> None:
        """Note that a call has returned."""
        if call is not None:
            self._ended(call, partial(self._follower.after_root, call, output))

    def fail(self, call: RootCall | None, error: BaseException) -> None:
        """Note that a call has raised an exception."""
        if call is not None:
            self._ended(call, partial(self._follower.failed_root, call, error))

    def _ended(self, call: RootCall, follow: Callable[[], None]) -> None:
        with reported("the end of a call of a model is not followed"):
            if call.number == 1:
                call.model.describe()
            follow()
            self.on_end()

    def result(self, program: str) -> ProgramModels:
        """Return what was called and what was not seen."""
        models = tuple(model.info for model in self.models)
        return ProgramModels(program, models, tuple(self.unseen.values()))

    def note(self, what: str, reason: str) -> None:
        """Note once that something is not seen."""
        self.unseen.setdefault(what, UnseenModel(what, reason))

    def _find(self, module: nn.Module) -> CalledModel | None:
        # A checkpoint runs modules again in the backward pass; a replica is a part of its model.
        if inside_backward() or "_is_replica" in vars(module):
            return None
        if isinstance(module, ParametrizationList):  # it makes a weight of another module
            return None
        if module in self._known:
            return self._known[module]
        with self._adding:
            model = None
            owner, is_called = _running_forward(module)
            if is_called:  # a call that began before it could be followed
                return None
            if owner is not None:
                name = name_in_program([owner]) or class_name(owner)
                self.note(f"{name} ({class_name(owner)})", FORWARD_CALLED)
            elif len(self.models) < MAX_MODELS:
                model = self._add(module)
            else:
                self.note("models called later", f"the first {MAX_MODELS} are listed")
            self._known[module] = model
            return model

    def _add(self, module: nn.Module) -> CalledModel:
        inner = unwrapped(module)
        name = name_in_program([module, inner]) or class_name(inner)
        name = unused_name(name, {model.name for model in self.models})
        model = CalledModel(name, module, _place_of(script_frames()))
        self.models.append(model)
        return model


# The file of the functions that call ``forward``.
_CALLER = nn.Module.__init__.__code__.co_filename


def _running_forward(module: nn.Module) -> tuple[nn.Module | None, bool]:
    """The module whose ``forward`` calls another one, and whether it was called as a module."""
    for frame, _ in walk_stack(sys._getframe(1)):
        owner = variables_of(frame).get("self") if frame.f_code.co_name == "forward" else None
        if issubclass(type(owner), nn.Module) and owner is not module:
            below = frame.f_back
            return owner, below is not None and below.f_code.co_filename == _CALLER
    return None, False


def _place_of(frames: list[FrameType]) -> str:
    """The innermost line of the program, as ``infer.py:12``; else the innermost of a package."""
    own = [frame for frame in frames if is_of_program(frame)] or frames
    if not own:
        return ""
    path, line = own[0].f_code.co_filename, own[0].f_lineno
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return f"{path if relative.startswith(os.pardir) else relative}:{line}"
