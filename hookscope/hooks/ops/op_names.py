"""The plain names of operators, and which modules are operators themselves."""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any

from torch import nn

from hookscope.tensors.torch_internals import OpOverload, OpOverloadPacket

# Python's names of operators that have another name in PyTorch.
_DUNDER = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "invert": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_ALIASES = {"rsub": "sub", "numpy_T": "T"}
_OPERATORS = {"add", "sub", "mul", "div", "pow", "matmul", *_DUNDER}

# Attributes of a tensor that are computations.
_COMPUTED = {"T", "mT", "H", "mH", "real", "imag"}

# A module from one of these without children is an operator: its result is its output.
_BUILDING_BLOCKS = ("torch.nn.", "torch.ao.nn.", "hookscope.sources.torchscript.operator_modules.")


def plain_name(function: Any) -> str:
    """The operator's name without overload, namespace or underscores; empty without an operator.

    Example:
        >>> import torch
        >>> [plain_name(f) for f in (torch.Tensor.__iadd__, torch.ops.aten.flatten.using_ints)]
        ['add_', 'flatten']
        >>> plain_name(torch.Tensor.shape.__get__)
        ''
    """
    if isinstance(function, OpOverload):
        function = function.overloadpacket
    if isinstance(function, OpOverloadPacket):
        return _ALIASES.get(str(function.__name__), str(function.__name__))
    owner = getattr(function, "__self__", None)
    if isinstance(owner, GetSetDescriptorType | property):
        name = getattr(owner, "__name__", "")
        return name if function.__name__ == "__get__" and name in _COMPUTED else ""
    name = getattr(function, "__name__", "")
    special = name.startswith("__") and name.endswith("__")
    return _of_dunder(name[2:-2]) if special else _ALIASES.get(name, name)


def _of_dunder(name: str) -> str:
    for mark, end in (("i", "_"), ("r", "")):
        if name.removeprefix(mark) in _OPERATORS and name not in _OPERATORS:
            return _DUNDER.get(name[1:], name[1:]) + end
    return _DUNDER.get(name, name)


def is_building_block(module: nn.Module) -> bool:
    """Whether a module is one operator of PyTorch's own, such as ``Conv2d``.

    The class that it was made from decides, also for a scripted or exported module.

    Example:
        >>> is_building_block(nn.Linear(2, 2)), is_building_block(nn.Sequential(nn.ReLU()))
        (True, False)
    """
    kind = type(module)
    origin = getattr(kind, "_hookscope_class", f"{kind.__module__}.{kind.__qualname__}")
    return origin.startswith(_BUILDING_BLOCKS) and not list(module.children())
