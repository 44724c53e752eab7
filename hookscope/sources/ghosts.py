"""A model without values: what it does to shapes can be seen, and nothing weighs anything."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import nn


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` on the meta device: shapes without values, and no memory for them.

    Everything else is copied deeply, so that a pass through the copy leaves nothing in the model.
    Accelerate's hooks are left out: they would copy the weights they hold, and then bring them.
    """
    ghosts: dict[int, object] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        ghost = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            ghost = nn.Parameter(ghost, requires_grad=tensor.requires_grad)
        ghosts[id(tensor)] = ghost
    for module in model.modules():
        if hook := getattr(module, "_hf_hook", None):
            ghosts[id(hook)] = hook
    copied = copy.deepcopy(model, ghosts)
    for module in copied.modules():
        members = vars(module)
        if members.pop("_hf_hook", None) is not None:
            members["forward"] = members.pop("_old_forward")
    return copied
