"""States of recurrent layers: each step against a loop with the cells of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from tests.zoo import Module, Recurrent

CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}
GATE_NAMES = {
    nn.LSTM: ["input_gate", "forget_gate", "cell_gate", "output_gate"],
    nn.GRU: ["reset_gate", "update_gate", "new_gate"],
    nn.RNN: [],
}


def reader(rnn: nn.Module) -> Module:
    return Module(lambda self, x: self.rnn(x), rnn=rnn)


def by_cells(rnn: Any, rows: Tensor) -> dict[str, Tensor]:
    """The states (T, H) of one row (T, F), from a loop over the steps."""
    found: dict[str, Tensor] = {}
    for layer in range(rnn.num_layers):
        outputs = []
        for suffix in ["", "_reverse"][: 1 + rnn.bidirectional]:
            cell = CELLS[type(rnn)](rows.shape[1], rnn.hidden_size).to(rows.dtype)
            for name, parameter in cell.named_parameters():
                parameter.data = getattr(rnn, f"{name}_l{layer}{suffix}").data
            state: Any = None
            hidden, memory = [], []
            for row in rows.flip(0) if suffix else rows:
                state = cell(row[None], state)
                h, c = state if isinstance(state, tuple) else (state, state)
                hidden.append(h[0])
                memory.append(c[0])
            if suffix:
                hidden.reverse()
                memory.reverse()
            end = f".{layer}{suffix.replace('_', '.')}"
            found[f"hidden{end}"] = torch.stack(hidden)
            if isinstance(rnn, nn.LSTM):
                found[f"cell{end}"] = torch.stack(memory)
            outputs.append(found[f"hidden{end}"])
        rows = torch.cat(outputs, 1)
    return {name: value.detach() for name, value in found.items()}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("lengths", [None, [3, 5, 2]])
def test_each_step_layer_and_direction_is_that_of_a_loop_with_cells(
    kind: Any, lengths: Any
) -> None:
    net = Recurrent(kind, lengths, num_layers=2, bidirectional=True).double()
    rnn = net.rnn
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    shot = hookscope.capture(net, input=x, layers="rnn", what="state")
    names = {f"rnn/{name}" for name in by_cells(rnn, x[0])}
    assert set(shot) == names
    for n, row in enumerate(x):
        length = lengths[n] if lengths else 5
        for name, wanted in by_cells(rnn, row[:length]).items():
            found = shot[f"rnn/{name}"][n]
            torch.testing.assert_close(found[:length], wanted)
            assert not found[length:].any()


@pytest.mark.parametrize("kind", CELLS)
def test_gates_give_the_states_by_the_formulas(kind: Any) -> None:
    rnn = kind(4, 6).double()
    x = torch.randn(5, 2, 4, dtype=torch.float64)  # steps first, as without batch_first
    shot = hookscope.capture(reader(rnn), input=x, layers="rnn", what="state", ops=True)
    gates = [shot[f"rnn/{name}.0"] for name in GATE_NAMES[kind]]
    hidden = shot["rnn/hidden.0"]
    torch.testing.assert_close(hidden.transpose(0, 1), rnn(x)[0].detach())
    before = torch.cat([torch.zeros(2, 1, 6, dtype=hidden.dtype), hidden[:, :-1]], 1)
    if kind is nn.LSTM:
        i, f, g, o = gates
        cell = shot["rnn/cell.0"]
        last = torch.cat([torch.zeros(2, 1, 6, dtype=cell.dtype), cell[:, :-1]], 1)
        torch.testing.assert_close(cell, f * last + i * g)
        torch.testing.assert_close(hidden, o * cell.tanh())
    elif kind is nn.GRU:
        _, z, n = gates
        torch.testing.assert_close(hidden, (1 - z) * n + z * before)


def test_a_projection_and_a_single_row_without_a_batch() -> None:
    rnn = nn.LSTM(4, 6, proj_size=3).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    shot = hookscope.capture(reader(rnn), input=x, layers="rnn", what="state")
    output, (_, cell) = rnn(x)
    torch.testing.assert_close(shot["rnn/hidden.0"], output.detach())
    torch.testing.assert_close(shot["rnn/cell.0"][-1], cell[0].detach())


def test_states_that_do_not_reproduce_the_output_are_not_kept() -> None:
    class Doubled(nn.LSTM):
        def forward(self, x: Tensor) -> Any:
            output, state = super().forward(x)
            return output * 2, state

    shot = hookscope.capture(
        reader(Doubled(4, 6)), input=torch.randn(5, 2, 4), layers="rnn", what="state,output"
    )
    assert not [key for key in shot if "hidden" in key or "cell" in key]
    [absent] = [one for one in shot.absent if one.kind == "state"]
    assert "rounding" in absent.reason


def test_dropout_between_layers_is_said_to_be_random() -> None:
    rnn = nn.GRU(4, 6, num_layers=2, dropout=0.5)
    shot = hookscope.capture(
        reader(rnn), input=torch.randn(5, 2, 4), layers="rnn", what="state,output", train=True
    )
    assert "random" in next(one.reason for one in shot.absent if one.kind == "state")


def test_a_model_without_recurrent_layers_is_refused() -> None:
    with pytest.raises(RequestError, match=r"nn\.LSTM"):
        hookscope.capture(nn.Linear(3, 2), input=torch.ones(1, 3), what="state")
