"""One call of a module, as ``CallRegistry`` passes it to its subscribers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from torch import Tensor, nn

from hookscope.hooks.layers import Layer
from hookscope.specs.tensor_key import INPUT
from hookscope.tensors.nested import TensorPath


@dataclass(eq=False, slots=True)
class ModuleCall:
    """One open call of a module."""

    layer: Layer
    module: nn.Module
    number: int
    recomputed: bool
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    failed: bool = False
    entered: bool = False
    has_returned: bool = False
    states: dict[CallSubscriber, Any] = field(default_factory=dict)


class CallSubscriber:
    """Base class of subscribers to the calls of modules; see ``CallRegistry``."""

    def needs_begin(self, layer: Layer) -> bool:
        """Whether ``before_call`` must run before the module of ``layer`` does.

        If not, modules that cannot call others get ``on_return`` in place of both methods.
        """
        return True

    def before_call(self, call: ModuleCall) -> Any:
        """Act before the module runs; the result is passed to the method that ends the call."""

    def after_call(self, call: ModuleCall, state: Any) -> None:
        """Act after the module has run or failed. Not called if ``before_call`` raised."""

    def on_return(self, call: ModuleCall) -> None:
        """Act after a module has run or failed whose call was not passed on before."""
        state = self.before_call(call)
        try:
            self.after_call(call, state)
        except BaseException:
            self.abandon_call(call, state)
            raise

    def on_tensor(self, layer: Layer, number: int, output: Tensor) -> bool:
        """Act as ``on_return`` does for a call that returned a tensor, in less time.

        False if nothing was done; ``on_return`` follows then.
        """
        return False

    def abandon_call(self, call: ModuleCall, state: Any) -> None:
        """Forget a call that an interrupt ended. PyTorch calls no hook then."""


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
    aliases: tuple[str, ...] | None = None

    def origin(self) -> TensorOrigin:
        """Return the keywords of ``Capture.put``; without ``aliases``, those of the layer."""
        return {
            "module": self.layer.name,
            "type": self.layer.type,
            "call": self.call,
            "what": self.what,
            "kind": self.kind,
            "aliases": self.layer.aliases if self.aliases is None else self.aliases,
        }


def what_of(kind: str, path: TensorPath) -> str:
    """Name a tensor in the output or input of a call: ``output.1.0``, ``input.mask``."""
    # An input's path begins with 0 for positional and 1 for keyword arguments.
    return ".".join((kind, *(path[1:] if kind == INPUT else path)))
