"""Building a model without memory for its parameters: factories are sent to the meta device.

``with torch.device("meta")`` would send every new tensor there, and models that compute their own
widths with ``torch.arange(...)`` and read them back as numbers then fail. Here only the factories
that layers make parameters and buffers with are sent there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_FACTORIES = frozenset(
    {
        torch.empty,
        torch.zeros,
        torch.ones,
        torch.full,
        torch.rand,
        torch.randn,
        torch.eye,
        torch.empty_strided,
    }
)


class ParametersOnMeta(TorchFunctionMode):
    """While active, what makes parameters makes them on the meta device.

    Example:
        >>> with ParametersOnMeta():
        ...     layer = torch.nn.Linear(4, 2)
        >>> layer.weight.is_meta, torch.arange(3).is_meta
        (True, False)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def build(make: Callable[[], nn.Module], *, seed: int, meta: bool) -> nn.Module:
    """Return the model that ``make`` makes, in eval mode, its weights drawn from ``seed``.

    The global random state is left as it was. With ``meta`` it is built without memory.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # remarks of a library about its own parts
        torch.default_generator.manual_seed(seed)
        if not meta:
            return make().eval()
        with ParametersOnMeta():
            module = make()
        return module.to("meta").eval()
