"""State of PyTorch that hooks depend on: compilation, function modes, backward passes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import GeneratorType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hookscope.files.frame_variables import variables_of
from hookscope.files.signal_safety import SignalSafeContext, signal_safe_contextmanager
from hookscope.sources.structure import is_optimized, structure_of
from hookscope.tensors import torch_internals
from hookscope.tensors.threads import SharedSetting

# The code of PyTorch's generator that removes a mode while the mode handles a call.
_REMOVED_FOR_A_CALL = inspect.unwrap(torch_internals.pop_function_mode_temporarily).__code__

# The stance of the compiler is a setting of the whole process.
EAGER = SharedSetting(lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def _deeper_calls() -> Iterator[None]:
    """Allow twice as many nested calls: PyTorch calls a module with hooks through a frame more."""
    limit = sys.getrecursionlimit()
    deeper = min(2 * limit, 1 << 30)
    sys.setrecursionlimit(deeper)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == deeper:  # the model may have set another one
            sys.setrecursionlimit(limit)


# Also a setting of the whole process.
DEEPER_CALLS = SharedSetting(_deeper_calls)


@signal_safe_contextmanager
def without_compilation(model: nn.Module) -> Iterator[bool]:
    """Run compiled modules of ``model`` uncompiled; yields whether there are any."""
    compiled = structure_of(model).has_compiled()
    if compiled:
        EAGER.acquire()
    try:
        yield compiled
    finally:
        if compiled:
            EAGER.release()


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module runs compiled code."""
    return is_optimized(module) or module._compiled_call_impl is not None


class FunctionMode(SignalSafeContext[None]):
    """Enables a function mode of PyTorch; afterwards the stack of modes is as before.

    PyTorch removes a mode from its stack while the mode handles a call. If an interrupt comes then,
    Python would add it again when it frees the block's generator, so the generator is closed first.
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._depth = 0

    def _enter(self) -> None:
        self._depth = torch_internals.len_function_stack()
        torch_internals.push_function_mode(self._mode)

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        for frame, _ in walk_tb(traceback):
            generator = getattr(variables_of(frame).get("self"), "gen", None)
            if isinstance(generator, GeneratorType) and generator.gi_code is _REMOVED_FOR_A_CALL:
                generator.close()
        while torch_internals.len_function_stack() > self._depth:
            torch_internals.pop_function_mode()

    @property
    def is_innermost(self) -> bool:
        """Whether no other mode was enabled after it."""
        return torch_internals.current_function_mode() is self._mode


def inside_backward() -> bool:
    """Return whether a backward pass is running: a module that runs now is recomputed for it."""
    return bool(torch_internals.current_graph_task_id() != -1)
