"""The states of recurrent layers at each step: ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``.

A fused kernel computes all steps at once, so no hook sees a state. The steps are computed again
from the input and the weights, by the formulas in the documentation of these modules. The states
are recorded only if the last layer's hidden states, and the final ones of all layers, reproduce
what the module returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from hookscope.hooks.attention_weights import TOLERANCES, relative_difference
from hookscope.tensors.grad_mode import without_grad

GATES = {
    "LSTM": ("input_gate", "forget_gate", "cell_gate", "output_gate"),
    "GRU": ("reset_gate", "update_gate", "new_gate"),
}


@dataclass(frozen=True)
class RecurrentStates:
    """States by name, such as ``hidden.0`` and ``cell.0.reverse``, (N, T, H); or why not.

    Rows are those of the input, as it was before it was packed, and zeros follow the end of a row.
    Without a batch the states are (T, H).
    """

    states: dict[str, Tensor]
    gates: dict[str, Tensor]
    reason: str = ""


@without_grad
def recurrent_states(module: nn.RNNBase, args: Any, kwargs: Any, output: Any) -> RecurrentStates:
    """Return the states of one call of a module, which returned ``output``."""
    if module.training and module.dropout and module.num_layers > 1:
        return _without(
            f"dropout {module.dropout:g} between its layers is random; run in eval mode"
        )
    value = args[0] if args else kwargs["input"]
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    unbatched = not isinstance(value, PackedSequence) and value.ndim == 2
    returned, final = output
    rows, lengths = _rows_of(module, value)
    wanted, _ = _rows_of(module, returned)
    steps = torch.arange(rows.shape[1])
    inside = (steps < lengths.unsqueeze(1)).unsqueeze(2).to(rows.device)
    wide = torch.promote_types(rows.dtype, torch.float32)
    run = _UnrolledRun(module, inside, wide, {}, {})
    last = run.all_layers(rows.to(wide), _as_pair(given, unbatched))
    pairs = [(last, wanted), *run.finals(_as_pair(final, unbatched))]
    tolerance = TOLERANCES.get(wanted.dtype, 0.0)
    difference = 0.0  # on the meta device, where a run is made for its shapes
    if not wanted.is_meta:
        difference = max(relative_difference(again, own) for again, own in pairs)
    if not difference <= tolerance:
        return _without(
            "recomputed from the weights, they give an output that differs from the layer's by"
            f" {difference:.2g} of its largest entry, more than rounding explains ({tolerance:g})"
        )

    def stored(found: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (state[0] if unbatched else state).to(wanted.dtype)
            for name, state in found.items()
        }

    return RecurrentStates(stored(run.states), stored(run.gates))


def _without(reason: str) -> RecurrentStates:
    return RecurrentStates({}, {}, reason)


def _rows_of(module: nn.RNNBase, value: Any) -> tuple[Tensor, Tensor]:
    """A sequence as (N, T, F) in the order of the rows, and the length of each row."""
    if isinstance(value, PackedSequence):
        return pad_packed_sequence(value, batch_first=True)
    if value.ndim == 2:
        value = value.unsqueeze(0)
    elif not module.batch_first:
        value = value.transpose(0, 1)
    return value, torch.full((len(value),), value.shape[1])


def _as_pair(state: Any, unbatched: bool) -> tuple[Tensor | None, Tensor | None]:
    """The hidden and the cell state, (layers, N, H)."""
    hidden, cell = state if isinstance(state, tuple) else (state, None)
    if unbatched:
        hidden, cell = (None if x is None else x.unsqueeze(1) for x in (hidden, cell))
    return hidden, cell


@dataclass(frozen=True)
class _UnrolledRun:
    """The layers of a module, step by step; it fills ``states`` and ``gates``."""

    module: nn.RNNBase
    inside: Tensor  # (N, T, 1): whether a step is in the row
    dtype: torch.dtype
    states: dict[str, Tensor]
    gates: dict[str, Tensor]

    def all_layers(self, rows: Tensor, start: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """Return the output of the last layer for an input (N, T, F)."""
        for number, (layer, suffix) in enumerate(self._places()):
            if not suffix:
                outputs, source = [], rows
            outputs.append(self._direction(source, layer, suffix, number, start))
            rows = torch.cat(outputs, 2)
        return rows

    def finals(self, final: tuple[Tensor | None, Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the states after the last step of each row, each with what the module returned."""
        lengths = self.inside.sum(1)
        for name, own in zip(("hidden", "cell"), final, strict=True):
            for number, (layer, suffix) in enumerate(self._places()):
                if own is None or not len(lengths):
                    continue
                states = self.states[_name(name, layer, suffix)]
                at = torch.zeros_like(lengths) if suffix else lengths - 1
                index = at.unsqueeze(2).expand(-1, 1, states.shape[2])
                yield states.gather(1, index).squeeze(1), own[number]

    def _places(self) -> list[tuple[int, str]]:
        suffixes = ("", "_reverse") if self.module.bidirectional else ("",)
        return [(layer, suffix) for layer in range(self.module.num_layers) for suffix in suffixes]

    def _direction(
        self,
        rows: Tensor,
        layer: int,
        suffix: str,
        number: int,
        start: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        """Run one direction of one layer; return its hidden states (N, T, H)."""
        weights = _Weights.of(self.module, layer, suffix, self.dtype)
        batch, length = rows.shape[:2]
        size = self.module.proj_size or self.module.hidden_size
        widths = (size, self.module.hidden_size)
        hidden, cell = (
            rows.new_zeros(batch, width) if given is None else given[number].to(self.dtype)
            for given, width in zip(start, widths, strict=True)
        )
        seen: list[dict[str, Tensor]] = []
        order = range(length - 1, -1, -1) if suffix else range(length)
        for step in order:
            inside = self.inside[:, step]
            values = _STEPS[self.module.mode](weights, rows[:, step], hidden, cell)
            hidden = torch.where(inside, values["hidden"], hidden)
            cell = torch.where(inside, values.get("cell", cell), cell)
            seen.append({name: torch.where(inside, x, 0.0) for name, x in values.items()})
        if suffix:
            seen.reverse()
        for name in seen[0]:
            kept = self.states if name in ("hidden", "cell") else self.gates
            kept[_name(name, layer, suffix)] = torch.stack([step[name] for step in seen], 1)
        return self.states[_name("hidden", layer, suffix)]


def _name(what: str, layer: int, suffix: str) -> str:
    return f"{what}.{layer}{suffix.replace('_', '.')}"


@dataclass(frozen=True)
class _Weights:
    """The weights of one direction of one layer."""

    of_input: Tensor
    of_hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None

    @classmethod
    def of(cls, module: nn.RNNBase, layer: int, suffix: str, dtype: torch.dtype) -> _Weights:
        def find(name: str, exists: bool = True) -> Tensor | None:
            return getattr(module, f"{name}_l{layer}{suffix}").to(dtype) if exists else None

        of_input, of_hidden = find("weight_ih"), find("weight_hh")
        assert of_input is not None and of_hidden is not None
        biases = (find("bias_ih", module.bias), find("bias_hh", module.bias))
        return cls(of_input, of_hidden, *biases, find("weight_hr", module.proj_size > 0))

    def parts(self, x: Tensor, hidden: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each gate what comes from the input and from the hidden state."""
        from_input = F.linear(x, self.of_input, self.input_bias).chunk(count, 1)
        from_hidden = F.linear(hidden, self.of_hidden, self.hidden_bias).chunk(count, 1)
        yield from zip(from_input, from_hidden, strict=True)


def _lstm(weights: _Weights, x: Tensor, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
    i, f, g, o = (ours + theirs for ours, theirs in weights.parts(x, hidden, 4))
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell + i * g
    hidden = o * cell.tanh()
    if weights.projection is not None:
        hidden = F.linear(hidden, weights.projection)
    return {"hidden": hidden, "cell": cell, **dict(zip(GATES["LSTM"], (i, f, g, o), strict=True))}


def _gru(weights: _Weights, x: Tensor, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
    reset, update, new = weights.parts(x, hidden, 3)
    r, z = sum(reset).sigmoid(), sum(update).sigmoid()  # type: ignore[union-attr]
    n = (new[0] + r * new[1]).tanh()
    hidden = (1 - z) * n + z * hidden
    return {"hidden": hidden, **dict(zip(GATES["GRU"], (r, z, n), strict=True))}


def _plain(activation: Any) -> Any:
    def step(weights: _Weights, x: Tensor, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
        [(ours, theirs)] = weights.parts(x, hidden, 1)
        return {"hidden": activation(ours + theirs)}

    return step


_STEPS = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": _plain(torch.tanh),
    "RNN_RELU": _plain(torch.relu),
}
