"""Examples of torch.nn's larger modules, of quantized ones, and of traced models."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from typing import Tuple

import torch
from torch import Tensor, nn

from tests.sources.torchscript.examples import Table, quietly
from tests.sources.torchscript.programs_modules import Scale

LIBRARY = Table()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


SEQUENCE, IMAGE, ROW = noise(5, 2, 4), noise(1, 3, 8, 8), noise(2, 3)


def traced(module: nn.Module, *inputs: Tensor) -> nn.Module:
    with quietly():
        return torch.jit.trace(module.eval(), inputs, check_trace=False)


class Inside(nn.Module):
    """A module with overloads of forward can be called by another alone."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor):
        return self.inner(x)


@LIBRARY.module((SEQUENCE,))
class LstmWithState(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 3)

    def forward(self, x: Tensor):
        y, state = self.inner(x)
        return self.inner(x, state)


@LIBRARY.module((SEQUENCE,))
def lstm():
    return Inside(nn.LSTM(4, 3, num_layers=2))


@LIBRARY.module((SEQUENCE,))
def lstm_both_ways():
    return Inside(nn.LSTM(4, 3, bidirectional=True, batch_first=True, proj_size=2))


@LIBRARY.module((SEQUENCE,))
def gru():
    return Inside(nn.GRU(4, 3))


@LIBRARY.module((SEQUENCE, torch.tensor([5, 3])))
class PackedSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: Tensor, lengths: Tensor):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        output, (h, c) = self.lstm(packed)
        unpacked, sizes = nn.utils.rnn.pad_packed_sequence(output)
        return unpacked, sizes, h, c


@LIBRARY.module((SEQUENCE[0],))
def lstm_cell():
    return nn.LSTMCell(4, 3)


@LIBRARY.module((SEQUENCE,))
def lstm_traced():
    return traced(nn.LSTM(4, 3), SEQUENCE)


@LIBRARY.module((SEQUENCE, SEQUENCE, SEQUENCE))
def attention():
    return nn.MultiheadAttention(4, 2)


@LIBRARY.module((SEQUENCE,))
def transformer_encoder():
    with quietly():
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)


@LIBRARY.module((SEQUENCE,))
def transformer_encoder_training():
    with quietly():
        return torch.jit.script(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2))


@LIBRARY.module((SEQUENCE,))
def transformer_encoder_traced():
    with quietly():
        return traced(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1), SEQUENCE)


@LIBRARY.module((SEQUENCE, SEQUENCE))
def transformer():
    with quietly():
        return nn.Transformer(4, 2, 1, 1, 8)


@LIBRARY.module((torch.tensor([1, 2, 4, 0]), torch.tensor([0, 2])))
def embedding_bag():
    return nn.EmbeddingBag(5, 3, mode="mean")


@LIBRARY.module((torch.tensor([[1, 2], [4, 0]]),))
def embedding():
    return nn.Embedding(5, 3, padding_idx=0, max_norm=1.0)


@LIBRARY.module((ROW,))
def quantized_dynamic():
    with quietly():
        return torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        )


@LIBRARY.module((SEQUENCE,))
def quantized_lstm():
    with quietly():
        return torch.ao.quantization.quantize_dynamic(Inside(nn.LSTM(4, 3)), {nn.LSTM})


class ToQuantize(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()
        self.linear = nn.Linear(144, 2)
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        return self.dequant(self.linear(x.flatten(1)))


@LIBRARY.module((IMAGE,))
def quantized_static():
    with quietly():
        torch.backends.quantized.engine = "fbgemm"
        model = ToQuantize().eval()
        model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
        torch.ao.quantization.prepare(model, inplace=True)
        model(IMAGE)
        return torch.ao.quantization.convert(model)


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scale(2.0)
        self.shared = self.inner

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return self.inner(self.inner(x)) + self.shared(x), x


@LIBRARY.module((ROW,))
def traced_module_called_twice():
    return traced(CalledTwice(), ROW)


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


@LIBRARY.module((ROW,), (-ROW,))
def traced_with_a_scripted_part():
    with quietly():
        return traced(nn.Sequential(Scale(2.0), torch.jit.script(Chooses())), ROW)


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def other(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


def traced_methods():
    with quietly():
        return torch.jit.trace_module(Methods(), {"forward": ROW, "other": ROW}, check_trace=False)


LIBRARY.add("traced_module_with_two_methods", traced_methods, (ROW,))
LIBRARY.add("traced_module_with_two_methods_the_other", traced_methods, (ROW,), method="other")


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


@LIBRARY.module((ROW,))
def traced_constants():
    with quietly():
        return torch.jit.trace(Constants(), ROW, strict=False, check_trace=False)


@LIBRARY.module((ROW,))
def traced_function_in_a_scripted_module():
    with quietly():
        function = torch.jit.trace(lambda x: (x * 2).relu(), (ROW,), check_trace=False)

    class UsesATracedFunction(nn.Module):
        def __init__(self):
            super().__init__()
            self.function = function

        def forward(self, x: Tensor):
            return self.function(x) + 1

    return UsesATracedFunction()


@LIBRARY.module((IMAGE,))
def traced_convolutions():
    return traced(
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 2),
        ),
        IMAGE,
    )


@LIBRARY.module((IMAGE,))
def frozen():
    with quietly():
        module = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
        ).eval()
        return torch.jit.freeze(torch.jit.script(module))


@LIBRARY.module((noise(2, 3).half(),), (noise(2, 3).half(),))
def half_precision_module():
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU()).half()


@LIBRARY.module((ROW,))
def weight_norm():
    with quietly():
        return traced(nn.utils.weight_norm(nn.Linear(3, 2)), ROW)


@LIBRARY.module((ROW,))
def parametrized():
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    return traced(module, ROW)
