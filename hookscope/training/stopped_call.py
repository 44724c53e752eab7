"""The call that a script is stopped at, and its capture: what went in, what came out, the batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.hooks.record_key import RecordKey, what_of
from hookscope.hooks.tensor_sink import put
from hookscope.tensors.nested import unreadable_reason, walk
from hookscope.training.found_models import local_part
from hookscope.training.tensor_measures import unnoticed, version_of

CAPTURE_FILE = "stopped.capture.safetensors"


class SeenTensor:
    """A tensor that a layer got or returned, which can be saved until it is overwritten."""

    __slots__ = ("_values", "_version", "kind", "what")

    def __init__(self, what: str, kind: str, tensor: Tensor) -> None:
        self.what, self.kind = what, kind
        with unnoticed():
            self._values = tensor.detach()  # has no part of the graph, and the same memory
        self._version = version_of(self._values)

    @property
    def values(self) -> Tensor | None:
        """The tensor, detached; None if it was overwritten, or its memory was released."""
        values = self._values
        is_same = version_of(values) == self._version
        return local_part(values) if is_same and not unreadable_reason(values) else None


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a layer in the current step."""

    layer: Layer
    number: int
    values: tuple[SeenTensor, ...] = ()


def seen_tensors(kind: str, value: object) -> list[tuple[SeenTensor, Tensor]]:
    """Return the tensors in the arguments (``input``) or the result (``output``) of a call."""
    return [(SeenTensor(what_of(kind, path), kind, tensor), tensor) for path, tensor in walk(value)]


class CallCapture:
    """A capture of a call, which has copies of the tensors and may be written later."""

    def __init__(self, model: str, step: int) -> None:
        self._capture = Capture()
        self._capture.metadata |= {"command": "run", "model": {"spec": model}, "step": step}

    def add(self, calls: Iterable[Call]) -> None:
        """Add the inputs and outputs of calls."""
        for call in calls:
            for value in call.values:
                if (tensor := value.values) is not None:
                    self.add_tensor(call, value.what, value.kind, tensor)

    def add_tensor(self, call: Call, what: str, kind: str, tensor: Tensor) -> None:
        """Add one tensor of a call; its values may change afterwards."""
        key = RecordKey(call.layer, max(call.number, 1), what, kind)
        with unnoticed():
            put(self._capture, key, local_part(tensor.detach()).clone())

    def save(self, folder: Path) -> str:
        """Write the capture; return its name, or nothing if it is empty or cannot be written."""
        if not len(self._capture):
            return ""
        try:
            self._capture.save(folder / CAPTURE_FILE)
        except HookscopeError:
            return ""
        return CAPTURE_FILE
