"""Runs a program as ``python PROGRAM`` does, with hooks that clone the output of every module.

These are PyTorch's own hooks of the whole process, and know nothing of hookscope. Models are the
modules that are called while no other one is. ``python hooked_by_hand.py FILE PROGRAM ARGS`` writes
a list with, for each of them in the order of their first calls, its class and its tensors.
"""

from __future__ import annotations

import runpy
import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils.parametrize import ParametrizationList

from tests.oracle.by_hand import flat


class _Stack(threading.local):
    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


stack = _Stack()
outputs: list[tuple[nn.Module, nn.Module, int, dict[str, torch.Tensor]]] = []
counts: dict[tuple[int, int], int] = {}
roots: dict[int, nn.Module] = {}


def before(module: nn.Module, args: Any) -> None:
    """Note that a module is called."""
    if not stack.modules:
        roots.setdefault(id(module), module)
    stack.modules.append(module)


def after(module: nn.Module, args: Any, output: Any) -> None:
    """Clone what it returned."""
    root = stack.modules[0]
    assert stack.modules.pop() is module
    key = id(root), id(module)
    counts[key] = counts.get(key, 0) + 1
    tensors = {path: tensor.detach().clone() for path, tensor in flat(output)}
    outputs.append((root, module, counts[key], tensors))


def models() -> list[tuple[str, int, dict[str, torch.Tensor]]]:
    """For each model its class, its number of parameters and its tensors by key."""
    found = []
    for root in roots.values():
        if isinstance(root, ParametrizationList):  # it makes a weight of another module
            continue
        names = {id(module): f".{name}" * bool(name) for name, module in root.named_modules()}
        tensors = {}
        for owner, module, call, values in outputs:
            if owner is root and id(module) in names:  # else it is held in a list, say
                number = f":{call}" if call > 1 else ""
                for path, tensor in values.items():
                    tensors[f"{names[id(module)]}{number}/output{path}"] = tensor
        size = sum(weight.numel() for weight in root.parameters())
        found.append((type(root).__name__, size, tensors))
    return found


if __name__ == "__main__":
    file, program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.path[0] = program.rpartition("/")[0]
    register_module_forward_pre_hook(before)
    register_module_forward_hook(after)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        torch.save(models(), file)
