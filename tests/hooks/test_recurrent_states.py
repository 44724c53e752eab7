"""States of recurrent layers: each step against a loop with the cells of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import hookscope
from hookscope.errors import RequestError
from tests.conftest import Refused, Run

CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}
GATE_NAMES = {
    nn.LSTM: ["input_gate", "forget_gate", "cell_gate", "output_gate"],
    nn.GRU: ["reset_gate", "update_gate", "new_gate"],
    nn.RNN: [],
}


class Reader(nn.Module):
    """A recurrent module, which gets its input packed if ``lengths`` are given."""

    def __init__(self, rnn: nn.Module, lengths: list[int] | None = None) -> None:
        super().__init__()
        self.rnn, self.lengths = rnn, lengths

    def forward(self, x: Tensor) -> Any:
        if self.lengths is None:
            return self.rnn(x)
        packed = pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)


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
    rnn = kind(4, 6, num_layers=2, bidirectional=True, batch_first=True).double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    shot = hookscope.capture(Reader(rnn, lengths), input=x, layers="rnn", what="state")
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
    shot = hookscope.capture(Reader(rnn), input=x, layers="rnn", what="state", ops=True)
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
    shot = hookscope.capture(Reader(rnn), input=x, layers="rnn", what="state")
    output, (_, cell) = rnn(x)
    torch.testing.assert_close(shot["rnn/hidden.0"], output.detach())
    torch.testing.assert_close(shot["rnn/cell.0"][-1], cell[0].detach())


def test_states_that_do_not_reproduce_the_output_are_not_kept() -> None:
    class Doubled(nn.LSTM):
        def forward(self, x: Tensor) -> Any:
            output, state = super().forward(x)
            return output * 2, state

    shot = hookscope.capture(
        Reader(Doubled(4, 6)), input=torch.randn(5, 2, 4), layers="rnn", what="state,output"
    )
    assert not [key for key in shot if "hidden" in key or "cell" in key]
    [absent] = [one for one in shot.absent if one.kind == "state"]
    assert "more than rounding explains" in absent.reason


def test_dropout_between_layers_is_said_to_be_random() -> None:
    rnn = nn.GRU(4, 6, num_layers=2, dropout=0.5)
    shot = hookscope.capture(
        Reader(rnn), input=torch.randn(5, 2, 4), layers="rnn", what="state,output", train=True
    )
    assert "random" in next(one.reason for one in shot.absent if one.kind == "state")


def test_a_model_without_recurrent_layers_is_refused() -> None:
    with pytest.raises(RequestError, match=r"No selected layer is nn\.LSTM"):
        hookscope.capture(nn.Linear(3, 2), input=torch.ones(1, 3), what="state")


@pytest.mark.slow
def test_the_command_records_states_and_plot_draws_them_over_time(
    run: Run, refused: Refused, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "net.py").write_text(
        "from torch import nn\ndef net():\n    return nn.LSTM(4, 6, batch_first=True)\n"
    )
    words = ("capture", "net.py:net", "--shape", "2x5x4", "-o", "a.safetensors")
    done = run(*words, "--what", "state")
    assert done.rc == 0, done.stderr
    assert "hidden.0" in done.stdout and "cell.0" in done.stdout
    done = run("plot", "a.safetensors", "./cell.0", "-o", "a.png")
    assert done.rc == 0, done.stderr
    assert (work / "a.png").stat().st_size > 1000
    said = refused("capture", "resnet18", "--shape", "1x3x32x32", "--what", "state")
    assert "nn.LSTM" in said
