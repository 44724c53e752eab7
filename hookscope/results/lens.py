"""The result of the logit lens: what each layer of a language model predicts at each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.result import Result


@dataclass(frozen=True)
class Token:
    """A token, or a class of a classifier.

    Attributes:
        index: its id.
        text: its text within a sentence, with a leading space; its name or number if it has none.
    """

    index: int
    text: str


@dataclass(frozen=True)
class Candidate:
    """A token that may follow, and its probability from 0 to 1."""

    token: Token
    probability: float


@dataclass(frozen=True)
class LensCell:
    """What one layer predicts after one position.

    Attributes:
        layer: the layer's name; ``NAME/input`` for what goes into it.
        row: the number of the text in the batch, from 0.
        position: from 0.
        top: the most probable tokens, the first one first.
        target: the token that ``rank`` and ``probability`` are of.
        rank: how many tokens are more probable than the target, plus 1.
        probability: of the target.
        kl: Kullback-Leibler divergence from this layer's prediction to that of the whole model,
            sum of p log(p / q) with the model's p and the layer's q, in nats.
    """

    layer: str
    row: int
    position: int
    top: tuple[Candidate, ...]
    target: Token
    rank: int
    probability: float
    kl: float


@dataclass(frozen=True)
class LensRow:
    """One text of the batch.

    Attributes:
        tokens: its tokens; empty if the input is not of tokens.
        padding: the positions that are padding, which have no cells.
    """

    tokens: tuple[Token, ...]
    padding: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lens(Result):
    """What each layer predicts, after the final norm and the unembedding.

    Attributes:
        layers: names of the layers, in execution order.
        rows: the texts of the batch.
        positions: number of positions, padding included.
        cells: by layer, then text, then position.
        norm: name of the final norm; empty if there is none.
        head: name of the unembedding.
        notes: what the reader should know, such as a difference of the last layer from the output.
        metadata: model, inputs, seed and versions.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
        >>> found = hookscope.lens(net, layers=["0"], input=torch.tensor([[3, 1, 4]]))
        >>> found
        <Lens of Sequential: 1 layers, 3 positions>
        >>> cell = found.cell("0", position=1)
        >>> cell.layer, cell.position, len(cell.top)
        ('0', 1, 5)
    """

    view = "lens"

    layers: tuple[str, ...]
    rows: tuple[LensRow, ...]
    positions: int
    cells: tuple[LensCell, ...]
    norm: str
    head: str
    notes: tuple[str, ...]
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        return f"<Lens of {model}: {len(self.layers)} layers, {self.positions} positions>"

    def cell(self, layer: str, position: int = -1, row: int = 0) -> LensCell:
        """Return one cell.

        Args:
            layer: a name in ``layers``.
            position: from 0; -1 is the last one that is not padding.
            row: the number of the text.

        Raises:
            KeyError: there is no such layer, text or position, or it is padding.
        """
        real = self.real_positions(row)
        if position < 0 and -position <= len(real):
            position = real[position]
        for cell in self.cells:
            if (cell.layer, cell.row, cell.position) == (layer, row, position):
                return cell
        raise KeyError((layer, position, row))

    def real_positions(self, row: int) -> Sequence[int]:
        """Return the positions of a text that are not padding."""
        padding = set(self.rows[row].padding)
        return [position for position in range(self.positions) if position not in padding]

    def by_layer(self, row: int) -> Iterator[tuple[str, list[LensCell]]]:
        """Yield each layer with its cells of one text, in order of positions."""
        cells: dict[str, list[LensCell]] = {layer: [] for layer in self.layers}
        for cell in self.cells:
            if cell.row == row:
                cells[cell.layer].append(cell)
        yield from cells.items()

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.metadata,
            "norm": self.norm,
            "head": self.head,
            "layers": list(self.layers),
            "positions": self.positions,
            "rows": [asdict(row) for row in self.rows],
            "cells": [asdict(cell) for cell in self.cells],
            "notes": list(self.notes),
        }
