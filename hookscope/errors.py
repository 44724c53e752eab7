"""The errors that hookscope raises, each with a message and a hint.

The ``hint`` says what to do next. ``exit_code`` is the exit status of the command: 2 if the request
was wrong, 1 if a valid request failed while running.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hookscope.escapes import bounded, visible

# Exit statuses: a valid request failed, or found what it looks for; a wrong request; Ctrl-C.
FAILED, USAGE, INTERRUPTED = 1, 2, 130
TROUBLE = 2  # that ``diff`` failed: its 1 says that the sides differ, as in diff(1)

# Characters: a message may quote names and values of files, and a damaged file has any.
_LONGEST_MESSAGE, _LONGEST_HINT = 1000, 2000


class HookscopeError(Exception):
    """Base of all errors raised by hookscope.

    Both texts may contain names of files, modules and keys; invisible characters are escaped,
    and long texts are cut.

    Args:
        message: one sentence that names the cause.
        hint: what to do next; empty if the message already says it.

    Example:
        >>> import hookscope
        >>> try:
        ...     _ = hookscope.load("sample_models/features")["cf"]
        ... except hookscope.HookscopeError as error:
        ...     print(error.message)
        ...     print(error.hint)
        'cf' matches nothing in sample_models/features.
        'hookscope show sample_models/features' lists what is in it.
    """

    exit_code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = bounded(visible(message.strip()), _LONGEST_MESSAGE)
        self.hint = bounded(visible(hint.strip()), _LONGEST_HINT)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def respell(self, spelled: Callable[[str], str]) -> None:
        """Change the words of both texts."""
        self.message, self.hint = spelled(self.message), spelled(self.hint)
        self.args = (self.message, *self.args[1:])


class RequestError(HookscopeError):
    """The request is wrong: a name, a number or a file."""

    exit_code = USAGE


class MissingKeyError(RequestError, KeyError):
    """A capture has no tensor of that key, or the name of a layer stands for several tensors."""


class ModelError(RequestError):
    """There is no such model, or it cannot be built."""


class WeightsError(HookscopeError):
    """Weights cannot be fetched, are unreadable, or do not fit the model."""


class WeightsFileError(WeightsError):
    """A weights file is damaged, of another type, or does not fit the model."""

    exit_code = USAGE


class LayerError(RequestError):
    """A layer pattern matches nothing, or cannot be parsed."""


class InputError(RequestError):
    """An input file, shape or preprocessing choice cannot be used."""


class EditError(RequestError):
    """An edit cannot be parsed, or does not fit its layer.

    Args:
        message: one sentence.
        hint: what to do next.
        reason: why it does not fit, without the names of the edit and the layer.
    """

    def __init__(self, message: str, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or message


class LossError(RequestError):
    """The loss or its target does not fit the model's output."""


class LossFailed(LossError):
    """A custom loss raised an exception."""

    exit_code = FAILED


class SettingsError(RequestError):
    """A settings file or environment variable has an unknown or invalid value."""


class StoreError(HookscopeError):
    """A result file cannot be read or written."""


class ResultsFileError(StoreError):
    """A result file is missing, damaged, of another type, or was not written by hookscope."""

    exit_code = USAGE


class EnvironmentFault(HookscopeError):
    """A package is missing or does not match torch, or there is no such device."""


class ForwardError(HookscopeError):
    """The model raised an exception. ``layer`` names the module that was running.

    Args:
        message: one sentence with the model's message.
        layer: dotted name of the innermost module that was running; ``.`` is the model itself.
        recorded: how many tensors were recorded before.
        hint: what to do next.

    Attributes:
        failure: a ``ForwardFailure``: the calls before it, the input and the expected input; None
            for a backward pass.
        tree: for ``tree``, the ``ModuleTree`` with the calls before it; else None.
        exception: the exception of the model.
        with_grad: whether the pass ran with autograd.
    """

    view = "forward_failure"

    def __init__(self, message: str, layer: str, recorded: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.layer = layer
        self.recorded = recorded
        self.failure: Any = None
        self.tree: Any = None
        self.exception: BaseException | None = None
        self.with_grad = False
        self._hint = hint
        self._spelled: Callable[[str], str] = str

    @property
    def hint(self) -> str:
        """The known facts of the failure, one a line, and what to do next."""
        lines = self.failure.explanation() if self.failure is not None else []
        lines = (*lines, *([self._hint] if self._hint else []))
        return self._spelled("\n".join(map(visible, lines)))

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint

    def respell(self, spelled: Callable[[str], str]) -> None:
        """Change the words of both texts, also of facts that are found later."""
        self.message, self._spelled = spelled(self.message), spelled
        self.args = (self.message, *self.args[1:])


class HookError(HookscopeError):
    """A user hook raised, or returned a value that cannot replace the old one.

    Args:
        message: one sentence with the hook, its line and the exception.
        layer: dotted name of the module at which it ran; ``.`` is the model itself.
        hint: what to do next.

    Attributes:
        capture: the ``Capture`` of what was recorded before; None outside a recording.
    """

    def __init__(self, message: str, layer: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.layer = layer
        self.capture: Any = None


class CheckFailed(HookscopeError):
    """A requested check (``strict``, ``verify``, ``max_bytes``) failed."""


def cause(error: Exception) -> str:
    """Return the message of the error on one line, or its class's name if it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


# What torch, the loader of libraries and C++ say when memory is short; torch has no type for it on
# a CPU.
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory|out of memory|std::bad_alloc"
    r"|failed to map segment from shared object|can't start new thread"
    r"|storage size calculation overflowed|overflow when unpacking long|unable to mmap",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, whatever its type.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
        True
    """
    kinds = (RuntimeError, TypeError, ImportError, OSError)
    return isinstance(error, MemoryError) or (
        isinstance(error, kinds) and bool(_NO_MEMORY.search(str(error)))
    )
