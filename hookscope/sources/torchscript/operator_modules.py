"""Operators as modules, for a model without submodules.

``torch.jit.freeze`` inlines a model into one graph, with its weights as constants. To support
hooks, each operator on tensors becomes a module: ``conv2d_3`` is the third convolution of the
graph, and its weights are parameters again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class OperatorModule(nn.Module):
    """One operator of a graph."""

    def __init__(
        self,
        operator: Callable[..., Any],
        weights: Mapping[int, tuple[str, Tensor]],
        shared: dict[Tensor, nn.Parameter],
    ) -> None:
        super().__init__()
        self._operator = operator
        self._weight_names = {position: name for position, (name, _) in weights.items()}
        for name, tensor in weights.values():
            if tensor.is_floating_point() or tensor.is_complex():
                parameter = shared.setdefault(tensor, nn.Parameter(tensor, requires_grad=False))
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on these arguments and its weights."""
        inputs = list(args)
        for position, name in self._weight_names.items():
            inputs.insert(position, getattr(self, name))
        return self._operator(*inputs, **kwargs)


class OperatorModules:
    """Makes the operator modules of one model, and adds them to it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._count: Counter[str] = Counter()
        self._shared: dict[Tensor, nn.Parameter] = {}

    def add(
        self, kind: str, operator: Callable[..., Any], weights: Mapping[int, tuple[str, Tensor]]
    ) -> str:
        """Add a module for an operator such as ``aten::relu_`` and return its name."""
        operator_name = kind.partition("::")[2].strip("_")
        self._count[operator_name] += 1
        name = f"{operator_name}_{self._count[operator_name]}"
        module = type(operator_name, (OperatorModule,), {})(operator, weights, self._shared)
        self._model.add_module(name, module)
        return name
