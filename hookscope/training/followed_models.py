"""Follows the models that a program, a cell or a block calls, as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from types import FunctionType
from typing import Any

import torch
from torch import nn

from hookscope.execution.provenance import versions
from hookscope.hooks.capture import Capture
from hookscope.hooks.process_hooks import around_function, around_outer_calls
from hookscope.hooks.user_hooks import load_user_hooks
from hookscope.results.program_models import ProgramModels
from hookscope.results.result import Result
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.program_options import CAPTURE, CHECK, TRACE, ProgramOptions
from hookscope.tensors.torch_internals import script_compiler
from hookscope.training.called_models import CalledModels, RootFollower
from hookscope.training.hooked_models import EditedModels, HookedModels
from hookscope.training.model_capture import ModelCapture
from hookscope.training.model_check import ModelCheck
from hookscope.training.model_trace import ModelTrace
from hookscope.training.script_messages import reported

OTHER_PROCESS = "models that it calls are not seen; name a script that calls them itself"
_HOOKED: dict[str, type[HookedModels[Any]]]
_HOOKED = {CAPTURE: ModelCapture, CHECK: ModelCheck, TRACE: ModelTrace, "": EditedModels}


class FollowedModels:
    """The models that are called between ``start`` and ``end``.

    ``on_hooks`` is called with a model after hooks were put into it.

    Raises:
        HookscopeError: a user hook cannot be loaded.
    """

    def __init__(
        self,
        options: ProgramOptions,
        layers: Sequence[str],
        interventions: Interventions,
        on_hooks: Callable[[nn.Module], None] = lambda model: None,
    ) -> None:
        kind = _HOOKED.get(options.mode)
        self._hooked: HookedModels[Any] | None = None
        if kind is None:
            self.called = CalledModels(RootFollower(options.stop_after))
        else:
            arguments = interventions.hook_args or {}
            kinds = tuple(interventions.hook_kind)
            hooks = load_user_hooks(interventions.hooks, kinds, arguments, verb="run")
            self._hooked = kind(options, layers, interventions, hooks, on_hooks)
            self.called = self._hooked.called

    def start(self) -> None:
        """Follow the calls from now on."""
        self._undo = (
            around_outer_calls(self.called),
            around_function(BaseProcess, "start", self._on_process),
            around_function(*script_compiler(), self._on_compiler),
            around_function(torch.export, "export", self._on_compiler),
        )

    def end(self) -> None:
        """Follow no more calls, and remove all hooks."""
        for undo in self._undo:
            undo()
        if self._hooked is not None:
            self._hooked.detach()

    def _on_compiler(self, *args: Any, **kwargs: Any) -> None:
        with reported("the hooks are not removed for a compiler"):
            if self._hooked is not None:
                self._hooked.detach_for_compiler()

    def _on_process(self, process: BaseProcess) -> None:
        """Note that the program starts a process that is not a worker of a data loader."""
        with reported("a process that the program starts is not listed"):
            target: Any = vars(process).get("_target")
            # A method of a built-in type has no module.
            if not (getattr(target, "__module__", None) or "").startswith("torch.utils.data"):
                is_function = isinstance(target, FunctionType)
                name = f"{target.__qualname__}()" if is_function else process.name
                self.called.note(f"{name} in another process", OTHER_PROCESS)

    @property
    def has_all(self) -> bool:
        """Whether all that can be recorded of the first calls of the chosen layers has been."""
        return self._hooked is None or self._hooked.has_all

    def may_match(self, others: Iterable[nn.Module]) -> bool:
        """Whether each pattern matches layers of a model, or of others that may be called later."""
        return self._hooked is None or self._hooked.may_match(others)

    def unmet(self) -> list[str]:
        """Return a sentence about each thing that was asked for and did not come."""
        return [] if self._hooked is None else list(self._hooked.unmet())

    def sentences(self) -> list[str]:
        """Return what is said at the end: what was edited, and what did not come."""
        return [*(() if self._hooked is None else self._hooked.edited()), *self.unmet()]

    def unmatched(self) -> list[str]:
        """Return a sentence about each pattern that matches no layer."""
        return [] if self._hooked is None else list(self._hooked.unmatched())

    def result(self, program: str, command: str = "run", arguments: Sequence[str] = ()) -> Result:
        """Return what was found, after the end."""
        listed = self.called.result(program)
        if self._hooked is None:
            return listed
        return self._hooked.result(self._metadata(listed, command, arguments))

    def fill(self, capture: Capture, program: str, command: str) -> None:
        """Put what was recorded into a capture, after the end."""
        assert isinstance(self._hooked, ModelCapture)
        self._hooked.result(self._metadata(self.called.result(program), command), capture)

    def _metadata(
        self, listed: ProgramModels, command: str, arguments: Sequence[str] = ()
    ) -> dict[str, Any]:
        return {
            "command": command,
            "model": {"spec": listed.program},
            "program": listed.to_json() | {"arguments": list(arguments)},
            "versions": versions(),
        }
