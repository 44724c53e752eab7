"""The name of a recorded tensor while a model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from hookscope.hooks.layers import Layer
from hookscope.specs.record_kinds import INPUT
from hookscope.tensors.nested import TensorPath


class TensorOrigin(TypedDict):
    """What a tensor of a capture is: see ``Record``."""

    module: str
    type: str
    call: int
    what: str
    kind: str
    aliases: tuple[str, ...]


# Two tensors of the same name have different keys. Not frozen, which would take longer to make.
@dataclass(eq=False, slots=True)
class RecordKey:
    """The name of a tensor, or of a gradient that may arrive."""

    layer: Layer
    call: int
    what: str
    kind: str

    def origin(self, aliases: tuple[str, ...] | None = None) -> TensorOrigin:
        """Return the keywords of ``Capture.put``. If ``aliases`` is None, they are the layer's."""
        return {
            "module": self.layer.name,
            "type": self.layer.type,
            "call": self.call,
            "what": self.what,
            "kind": self.kind,
            "aliases": self.layer.aliases if aliases is None else aliases,
        }


def what_of(kind: str, path: TensorPath) -> str:
    """Name a tensor in the output or input of a call: ``output.1.0``, ``input.mask``."""
    # An input's path begins with 0 for positional and 1 for keyword arguments.
    return ".".join((kind, *(path[1:] if kind == INPUT else path)))
