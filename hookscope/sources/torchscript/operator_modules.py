"""Operators as modules, for a model that has no modules inside it.

``torch.jit.freeze`` inlines all of a model into one graph and makes its weights constants there. So
that hooks still find something, each operator that works on tensors becomes a module: ``conv2d_3``
is the third convolution of the graph, and the weights it uses are its parameters again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class OperatorModule(nn.Module):
    """One operator of a graph.

    Args:
        operator: what it runs.
        held: weights by position among the operator's arguments, with the argument's name.
        shared: parameters made before; a tensor that two operators use is one parameter.
    """

    def __init__(
        self,
        operator: Callable[..., Any],
        held: Mapping[int, tuple[str, Tensor]],
        shared: dict[Tensor, nn.Parameter],
    ) -> None:
        super().__init__()
        self._operator = operator
        self._held = {position: name for position, (name, _) in held.items()}
        for name, tensor in held.values():
            if tensor.is_floating_point() or tensor.is_complex():
                parameter = shared.setdefault(tensor, nn.Parameter(tensor, requires_grad=False))
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on these arguments and the weights it holds."""
        given = list(args)
        for position, name in self._held.items():
            given.insert(position, getattr(self, name))
        return self._operator(*given, **kwargs)


class OperatorModules:
    """Makes the steps of one model, and puts them into it under the names they get."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._count: Counter[str] = Counter()
        self._shared: dict[Tensor, nn.Parameter] = {}

    def add(
        self, kind: str, operator: Callable[..., Any], held: Mapping[int, tuple[str, Tensor]]
    ) -> str:
        """Make the next step of an operator such as ``aten::relu_`` and return its name."""
        plain = kind.partition("::")[2].strip("_")
        self._count[plain] += 1
        name = f"{plain}_{self._count[plain]}"
        made = type(plain, (OperatorModule,), {})(operator, held, self._shared)
        self._model.add_module(name, made)
        return name
