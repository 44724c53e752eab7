"""Where the devices that a file names are, once its model has been moved."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Place:
    """The device a model was saved on, and the one it is on now.

    A traced graph holds the device it was traced on as a constant, and so would make tensors there
    for ever: that device stands for wherever the parameters are. One object is shared by all
    modules of a model; a deep copy of it looks at the parameters of the model's copy.

    Args:
        home: where the model was when it was saved.
        model: where it is now is seen from the first parameter or buffer in it.
    """

    def __init__(self, home: torch.device, model: nn.Module) -> None:
        self.home = home
        holders = (module for module in model.modules() if module._parameters or module._buffers)
        self.owner = next(holders, None)

    def now(self) -> torch.device:
        """Where the model is."""
        if self.owner is None:
            return self.home
        held = {**self.owner._parameters, **self.owner._buffers}
        return next((tensor.device for tensor in held.values() if tensor is not None), self.home)

    def device(self, named: torch.device) -> torch.device:
        """The device that ``named`` in the graph means now."""
        same = named.type == self.home.type and (named.index or 0) == (self.home.index or 0)
        return self.now() if same else named

    def at_home(self, constant: torch.device | Tensor) -> torch.device | Tensor:
        """A device that the graph names, or a tensor that it holds, where the model is now."""
        if not isinstance(constant, Tensor):
            return self.device(constant)
        there = self.device(constant.device)
        return constant if there == constant.device else constant.to(there)
