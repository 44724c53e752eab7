"""The errors that hookscope raises on purpose, each with a sentence and a repair.

Every one carries a ``hint``: what to do next. ``exit_code`` is what the shell sees: 2 where the
request itself was wrong, 1 where a sound request failed while running.
"""

from __future__ import annotations

from typing import Any

from hookscope.files.escapes import visible


class HookscopeError(Exception):
    """Base of all errors raised by hookscope.

    Names of files, modules and keys stand in both texts; what would not show is escaped there.

    Args:
        message: one sentence that names the cause.
        hint: what to do next; empty when the message already says it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = visible(message.strip())
        self.hint = visible(hint.strip())
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class RequestError(HookscopeError):
    """The request cannot be carried out as it was put: a word, a number or a file is wrong."""

    exit_code = 2


class ModelError(RequestError):
    """The model word names nothing, or what it names cannot be built."""


class WeightsError(HookscopeError):
    """Weights cannot be fetched, are unreadable, or do not fit the model."""


class WeightsFileError(WeightsError):
    """A file of weights is damaged, of another kind, or does not fit the model."""

    exit_code = 2


class LayerError(RequestError):
    """A layer pattern matches nothing, or cannot be read."""


class InputError(RequestError):
    """An input file, shape or preprocessing choice cannot be used."""


class EditError(RequestError):
    """An edit cannot be read, or does not fit the layer that it names.

    Args:
        message: one sentence.
        hint: what to do next.
        reason: why it does not fit, without the names of edit and layer.
    """

    def __init__(self, message: str, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or message


class LossError(RequestError):
    """The loss or its target does not fit the model's output."""


class LossFailed(LossError):
    """A loss of the user's own raised while it was computed."""

    exit_code = 1


class SettingsError(RequestError):
    """A settings file or environment variable holds something unknown or unreadable."""


class StoreError(HookscopeError):
    """A file of results cannot be read or written."""


class ResultsFileError(StoreError):
    """A file of results is missing, damaged, of another kind, or not hookscope's."""

    exit_code = 2


class EnvironmentFault(HookscopeError):
    """The installation is at fault: torchvision that does not match torch, no such device."""


class ForwardError(HookscopeError):
    """The model itself raised. ``layer`` names the module that was running.

    Args:
        message: one sentence with the model's own words.
        layer: dotted name of the innermost module that was running; ``.`` is the model itself.
        recorded: how many tensors had been recorded before.
        hint: what to do next.

    Attributes:
        failure: a ``ForwardFailure``: what ran before, what came in, what was expected; None for a
            backward pass.
        tree: of ``tree``, the ``ModuleTree`` with what had run; else None.
        exception: what the model raised.
        with_grad: whether the pass was made with autograd.
    """

    def __init__(self, message: str, layer: str, recorded: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.layer = layer
        self.recorded = recorded
        self.failure: Any = None
        self.tree: Any = None
        self.exception: BaseException | None = None
        self.with_grad = False
        self._hint = hint

    @property
    def hint(self) -> str:
        """What is known of the failure, a line for each fact, and what to do next."""
        lines = self.failure.explanation() if self.failure is not None else []
        return "\n".join(map(visible, (*lines, *([self._hint] if self._hint else []))))

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint


class HookError(HookscopeError):
    """A hook of the user's own raised, or returned what cannot stand in the old value's place.

    Args:
        message: one sentence with the hook, its line and the hook's own words.
        layer: dotted name of the module at which it ran; ``.`` is the model itself.
        hint: what to do next.

    Attributes:
        capture: the ``Capture`` of what had been recorded before; None outside a recording.
    """

    def __init__(self, message: str, layer: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.layer = layer
        self.capture: Any = None


class CheckFailed(HookscopeError):
    """A demand of the user's (``strict``, ``verify``, ``max_bytes``) was not met."""


def cause(error: Exception) -> str:
    """Return the error's own words on one line, or its class's name where it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
