"""Examples of traced models, and of modules of torch.nn."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from typing import Tuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table
from tests.sources.torchscript.programs_modules import Scale

TRACED = Table()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


SEQUENCE, ROW = noise(5, 2, 4), noise(2, 3)


def traced(module: nn.Module, *inputs: Tensor) -> nn.Module:
    return torch.jit.trace(module.eval(), inputs, strict=False, check_trace=False)


@TRACED.module((SEQUENCE, torch.tensor([5, 3])))
class PackedSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        output, (h, c) = self.lstm(packed)
        unpacked, sizes = nn.utils.rnn.pad_packed_sequence(output)
        again, state = self.lstm(x, (h, c))
        return unpacked, sizes, h, c, again, state


@TRACED.module((SEQUENCE,))
def transformer_encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scale(2.0)
        self.shared = self.inner

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return self.inner(self.inner(x)) + self.shared(x), x


@TRACED.module((ROW,))
def traced_module_called_twice():
    return traced(CalledTwice(), ROW)


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


@TRACED.module((ROW,), (-ROW,))
def traced_with_a_scripted_part():
    return traced(nn.Sequential(Scale(2.0), torch.jit.script(Chooses())), ROW)


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def other(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


@TRACED.module((ROW,), method="other")
def traced_methods():
    return torch.jit.trace_module(Methods(), {"forward": ROW, "other": ROW}, check_trace=False)


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = torch.arange(3.0)

    def forward(self, x: Tensor):
        y = torch.zeros(x.shape[0], 3, device=x.device) + torch.tensor([1.0, 2.0, 3.0]) + self.plain
        mask = torch.ones(3, dtype=torch.bool).to(x.device)
        x = x.masked_fill(~mask, 0.0)
        x = x.clone()
        x[:, 1] = 7
        return {"y": y, "x": x * torch.tensor(2.5)}, [x, x.type(torch.float64)]


@TRACED.module((ROW,))
def traced_constants():
    return traced(Constants(), ROW)


@TRACED.module((ROW,))
def traced_function_in_a_scripted_module():
    function = torch.jit.trace(lambda x: (x * 2).relu(), (ROW,), check_trace=False)

    class UsesATracedFunction(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = function

        def forward(self, x: Tensor):
            return self.function(x) + 1

    return UsesATracedFunction()
