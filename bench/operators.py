"""What watching adds to a sampled step on a device, as counts: operators, transfers and waits.

``python -m bench.operators OPTIMIZER COUNT`` prints a count and what it is divided by: the
``operators`` that a sampled step adds for each tensor that is watched, an output, a gradient at an
output or a parameter; its ``transfers`` for each dtype; the ``waits`` of a step; and what ``other``
steps add, of two networks, which must be the same.

No device is needed: the tensors of the CPU are taken for those of one. An operator is a call of one
of PyTorch's that returns no view. It is one kernel, or a few for many tensors; what PyTorch
computes one by one counts once for each tensor.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import hookscope
from hookscope.tensors.torch_internals import TorchDispatchMode
from hookscope.training import bad_value_stop, parameter_measures, step_record, tensor_measures

GROUPED_NORMS = (1, 2)  # the orders of which PyTorch computes many norms in one kernel
WAITS = ("_local_scalar_dense", "is_nonzero", "equal")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.Adam, fused=True),
}
LAYERS = 20


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operators that are called within it."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.waits = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = operator.overloadpacket.__name__
        if name in WAITS:
            self.waits += 1
        elif not _returns_views(operator):
            self.operators[name] += 1 if _is_grouped(name, args) else len(args[0])
        return operator(*args, **(kwargs or {}))


def _returns_views(operator: Any) -> bool:
    aliases = [one.alias_info for one in operator._schema.returns]
    return bool(aliases) and all(one is not None and not one.is_write for one in aliases)


def _is_grouped(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operator is one kernel, or a few whatever the number of tensors."""
    if name == "_foreach_norm":
        return len(args) < 2 or args[1] in GROUPED_NORMS
    others = args[1] if name.startswith("_foreach_") and len(args) > 1 else None
    if not isinstance(others, list) or not isinstance(others[0], Tensor):
        return True
    return all(one.shape == other.shape for one, other in zip(args[0], others, strict=True))


@contextmanager
def as_on_a_device() -> Iterator[list[torch.dtype]]:
    """Have hookscope take the tensors of the CPU for those of a device; yield what is copied."""
    transfers: list[torch.dtype] = []

    class Copy(tensor_measures._Copy):
        def __init__(self, queue: tensor_measures._Queue) -> None:
            transfers.append((queue.numbers + queue.arrays)[0].dtype)
            super().__init__(queue)

    with ExitStack() as stack:
        for module in (bad_value_stop, parameter_measures, step_record, tensor_measures):
            stack.enter_context(patch.object(module, "is_on_host", lambda tensor: False))
        # Else the modes of the script see nothing of what is measured.
        for name, other in (("_Copy", Copy), ("disable_current_modes", nullcontext)):
            stack.enter_context(patch.object(tensor_measures, name, other))
        yield transfers


@dataclass(frozen=True)
class StepCounts:
    """What a step called."""

    operators: Counter[str]
    waits: int
    transfers: list[torch.dtype]


def count_steps(
    model: nn.Module, batch: Tensor, optimizer: torch.optim.Optimizer, around: Any
) -> list[StepCounts]:
    """Return what each of three steps of a training calls, within a context manager."""
    found = []
    with as_on_a_device() as transfers, around:
        for _ in range(3):
            transfers.clear()
            with Counting() as mode:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            found.append(StepCounts(mode.operators, mode.waits, list(transfers)))
    return found


def added(
    model: nn.Module, batch: Tensor, optimizer: torch.optim.Optimizer, **options: Any
) -> list[StepCounts]:
    """Return what ``hookscope.watch`` adds to each of three steps."""
    bare = count_steps(model, batch, optimizer, nullcontext())
    with tempfile.TemporaryDirectory() as folder:
        around = hookscope.watch(model, optimizer, folder=Path(folder) / "run", **options)
        watched = count_steps(model, batch, optimizer, around)
    return [
        StepCounts(ours.operators - plain.operators, ours.waits - plain.waits, ours.transfers)
        for ours, plain in zip(watched, bare, strict=True)
    ]


def mlp(pairs: int) -> tuple[nn.Module, Tensor]:
    """Return a network of linear layers, each with an activation, and a batch."""
    layers = [layer for _ in range(pairs) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(16, 32)


def main() -> None:
    """Print the pair."""
    kind, count = sys.argv[1:]
    found = []
    for pairs in (LAYERS, 2 * LAYERS):
        model, batch = mlp(pairs)
        optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.01)
        # The third step is the first with a state of the optimizer that is sampled.
        _, other, sampled = added(model, batch, optimizer, every=2)
        found.append((other, sampled))
    (small_other, small), (other, sampled) = found
    tensors = LAYERS * 6  # of a pair: two outputs, their gradients, and two parameters
    pairs_by_name = {
        "operators": (sampled.operators.total() - small.operators.total(), tensors),
        "transfers": (len(sampled.transfers), len(set(sampled.transfers))),
        "waits": (sampled.waits + other.waits, 2),
        "other": (other.operators.total(), small_other.operators.total()),
    }
    print(*pairs_by_name[count])


if __name__ == "__main__":
    main()
