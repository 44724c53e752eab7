"""One call of a module, as ``CallRegistry`` passes it to its subscribers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hookscope.hooks.layers import Layer


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

        If no subscriber needs it, ``on_return`` is called in place of both methods for modules that
        cannot call others, which saves a hook.
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

    def abandon_call(self, call: ModuleCall, state: Any) -> None:
        """Forget a call that an interrupt ended. PyTorch calls no hook then."""
