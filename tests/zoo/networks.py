"""Small networks of the usual kinds: images, signals, text, attention, recurrence, mixtures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.zoo.specimen import images, sequences, specimen, tokens
from tests.zoo.structures import Skip


@specimen(images, "conv norm act pool drop fc")
class Classifier(nn.Module):
    """A convolution with batch norm, pooling, dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.pool, self.drop, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.norm(self.conv(x))))
        return self.fc(self.drop(x.flatten(1)))


@specimen(images, "conv1 bn1 relu conv2 bn2 relu", in_place="relu")
class Residual(nn.Module):
    """A block of a ResNet: one activation in place, used twice, and a sum in place."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


@specimen(images, "down middle middle.0 middle.1 middle.2 up out")
class UNet(nn.Module):
    """Down, up by a transposed convolution, and a skip connection that is concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.up(self.middle(self.down(x))), x], 1))


@specimen(images, "body act classifier")
class Segmenter(nn.Module):
    """A score for each class at each pixel, in a dict as torchvision's models return it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.act, self.classifier = nn.ReLU(), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        scores = self.classifier(self.act(self.body(x)))
        return {"out": F.interpolate(scores, x.shape[-2:], mode="bilinear")}


@specimen(images, "body boxes scores")
class Detector(nn.Module):
    """Scores and boxes of three queries, as a transformer's detector returns them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 4, stride=4)
        self.scores, self.boxes = nn.Linear(6, 3 * 5), nn.Linear(6, 3 * 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        pooled = self.body(x).relu().mean((2, 3))
        boxes = self.boxes(pooled).sigmoid().unflatten(1, (3, 4))
        return {"logits": self.scores(pooled).unflatten(1, (3, 5)), "pred_boxes": boxes}


@specimen(lambda: ([torch.rand(3, 8, 8), torch.rand(3, 6, 9)],), "body body")
class Detections(nn.Module):
    """A list of images of any size to a list of dicts, with as many boxes as were found."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 5, 3)

    def forward(self, pictures: list[Tensor]) -> list[dict[str, Tensor]]:
        found = []
        for picture in pictures:
            scores = self.body(picture[None])[0].flatten(1).mean(1)
            kept = scores > scores.median()
            boxes = scores[kept, None] * torch.tensor([0.0, 0.0, 8.0, 8.0])
            found.append({"boxes": boxes, "labels": kept.nonzero()[:, 0], "scores": scores[kept]})
        return found


@specimen(images, "conv heads.0 heads.1")
class Heads(nn.Module):
    """A list of outputs, one for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.heads = nn.ModuleList([nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.conv(x).relu()
        return [head(y) for head in self.heads]


@specimen(lambda: (torch.randn(2, 3, 8),), "conv act up fc", "1d")
@specimen(lambda: (torch.randn(2, 3, 8, 8, 8),), "conv act up fc", "3d", make=lambda own: own(3))
class Convolutions(nn.Module):
    """A convolution in one to three dimensions, and a transposed one."""

    def __init__(self, dimensions: int = 1) -> None:
        super().__init__()
        down, up = (getattr(nn, f"{name}{dimensions}d") for name in ("Conv", "ConvTranspose"))
        self.conv, self.act = down(3, 5, 3, stride=2, padding=1), nn.ReLU()
        self.up, self.fc = up(5, 2, 2, stride=2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.up(self.act(self.conv(x))).flatten(2).mean(2))


@specimen(images, "patches norm block block.attend fc")
class Patches(nn.Module):
    """A transformer of image patches, with a position parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.position = nn.Parameter(torch.randn(1, 4, 8))
        self.block, self.fc = Attention(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2) + self.position)
        return self.fc(self.block(tokens).mean(1))


@specimen(sequences, "attend")
class Attention(nn.Module):
    """Multi-head attention of PyTorch, which hands its output projection to a kernel."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x)[0]


@specimen(sequences, "qkv softmax drop proj")
class AttentionByHand(nn.Module):
    """Causal attention in the open, which returns its weights too."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.softmax, self.drop, self.heads = nn.Softmax(-1), nn.Dropout(0.1), heads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = self.softmax(scores.masked_fill(hidden, -torch.inf))
        mixed = (self.drop(weights) @ v).transpose(1, 2).reshape(x.shape)
        return self.proj(mixed), weights


@specimen(tokens, "embed blocks.0 blocks.0.linear blocks.1 blocks.1.linear head")
class Words(nn.Module):
    """Whole numbers to scores, through residual blocks."""

    def __init__(self, vocabulary: int = 20, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Skip(width), Skip(width)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


_LAYERS = " ".join(
    f"{block} {block}.norm1 {block}.attend {block}.attend.qkv {block}.attend.softmax "
    f"{block}.attend.drop {block}.attend.proj {block}.norm2 {block}.mlp"
    for block in ("blocks.0", "blocks.1")
)


@specimen(tokens, f"embed {_LAYERS} norm head", tied="embed.weight head.weight")
class LanguageModel(nn.Module):
    """A decoder: attention and a residual block in each layer, tied embeddings."""

    def __init__(self, vocabulary: int = 20, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([DecoderBlock(width), DecoderBlock(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class DecoderBlock(nn.Module):
    """Attention and a linear layer, each after a norm and beside a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attend = nn.LayerNorm(width), AttentionByHand(width)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))[0]
        return x + self.mlp(self.norm2(x)).relu()


@specimen(sequences, "rnn", "lstm")
@specimen(sequences, "rnn", "gru", make=lambda own: own(nn.GRU))
@specimen(sequences, "rnn", "packed", make=lambda own: own(lengths=[3, 5]))
class Recurrent(nn.Module):
    """A recurrent layer, which returns its outputs and its state; ``lengths`` packs its input."""

    def __init__(self, kind: Any = nn.LSTM, lengths: list[int] | None = None, **options: Any):
        super().__init__()
        self.rnn, self.lengths = kind(4, 3, batch_first=True, **options), lengths

    def forward(self, x: Tensor) -> Any:
        if self.lengths is None:
            return self.rnn(x)
        packed = pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)


@specimen(sequences, "cell cell cell cell cell head")
class Cells(nn.Module):
    """A cell that is called once for each step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


@specimen(lambda: tokens() * 2, "embed encoder embed decoder out")
class EncoderDecoder(nn.Module):
    """The state of one recurrent network is where another one begins."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(6, 20)
        self.encoder, self.decoder = (nn.GRU(6, 6, batch_first=True) for _ in range(2))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.embed(source))
        states, _ = self.decoder(self.embed(target), state)
        return self.out(states)


@specimen(sequences, "router experts.0 experts.1 experts.3")
class Experts(nn.Module):
    """A mixture: each token goes to the expert with the highest score, an idle one is not called.

    With ``capacity`` 1.0, an expert takes at most its even share of the tokens of a batch.
    """

    def __init__(self, width: int = 4, count: int = 4, capacity: float | None = None) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        limit = len(tokens)
        if self.capacity is not None:
            limit = int(self.capacity * limit / len(self.experts))
        best, choice = self.router(tokens).softmax(-1).max(-1)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            chosen = (choice == number).nonzero().flatten()[:limit]
            if len(chosen):
                result[chosen] = best[chosen, None] * expert(tokens[chosen])
        return x + result.view_as(x)


def _texts() -> dict[str, Tensor]:
    mask = torch.arange(5) < torch.tensor([[3], [5]])
    return {"input_ids": tokens()[0], "attention_mask": mask.long()}


@specimen(_texts, "embed head")
class Pooled(nn.Module):
    """The mean of the tokens that the mask leaves, all inputs by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask[..., None].float()
        return self.head((self.embed(input_ids) * real).sum(1) / real.sum(1))
