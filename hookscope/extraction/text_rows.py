"""Rows from the texts of a dataset, in batches of texts with nearly the same number of tokens.

Each text is tokenized alone. Texts of a batch are padded on the right, with zeros in the attention
mask, whatever the tokenizer does itself: positions of tokens then do not depend on the padding.
Without such a mask, or if padding changes the values of a model, a batch has texts of one length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hookscope.errors import HookscopeError, InputError, LayerError
from hookscope.extraction.axes import Axes, infer_axes
from hookscope.extraction.row_batches import DatasetRow, TableEntry, first_usable
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.extraction.shard_writer import Shard
from hookscope.inputs.input_reader import sha256
from hookscope.inputs.text_tables import TextTable
from hookscope.sources.loaded import TextRecipe
from hookscope.specs.extract_options import CLS, FIRST, LAST, MAX, MEAN, TOKENS, TOPK, Reduction
from hookscope.stores.features.token_spans import SPANS
from hookscope.tensors.nested import as_call, map_tensors, walk

MASK = "attention_mask"
# Texts that are tokenized and sorted by length at once, in batches.
_SORTED_BATCHES = 64
# Rows that are searched for two texts of different length.
_SEARCHED = 256

_ANY_LENGTH = (MEAN, MAX, FIRST, LAST, CLS)  # without naming the tokens as what is reduced


@dataclass(frozen=True)
class TextDataset:
    """The texts of several tables in order."""

    tables: Sequence[TextTable]
    every: int

    def __len__(self) -> int:
        return -(-sum(map(len, self.tables)) // self.every)

    def locate(self, row: int) -> tuple[TextTable, int]:
        """Return the table of a row, and the number of its text there, from 0."""
        number = row * self.every
        ends = list(accumulate(map(len, self.tables)))
        table = bisect_right(ends, number)
        return self.tables[table], number - (ends[table - 1] if table else 0)


class TextRows(Dataset[DatasetRow]):
    """Texts, each tokenized alone: the value of a row is the call value of one text."""

    def __init__(self, texts: TextDataset, recipe: TextRecipe, max_tokens: int | None) -> None:
        if max_tokens is not None and recipe.truncate is None:
            raise InputError(
                f"--max-tokens needs a tokenizer of transformers, not {recipe.text}.",
                "Leave it out, and cut the texts in tokenize().",
            )
        self._texts, self._recipe, self._max_tokens = texts, recipe, max_tokens
        vocabulary = recipe.vocabulary
        padding = vocabulary.padding if vocabulary else None
        self._fill = {"input_ids": padding or 0, "token_type_ids": 0, MASK: 0}
        self._read: dict[int, DatasetRow] = {}  # those that ``batches`` has tokenized
        self._spans: Callable[[str, int | None], str] | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, row: int) -> DatasetRow:
        return self._read.pop(row, None) or self._tokenize(row)

    def store_spans(self) -> None:
        """Store which characters each token of a text has, if the tokenizer knows it."""
        self._spans = self._recipe.spans

    def _tokenize(self, row: int) -> DatasetRow:
        table, number = self._texts.locate(row)
        entry: TableEntry = {"path": table.name(number)}
        try:
            read = table.read(number)
            entry |= read.columns
            text = read.text
            data = text.encode(errors="surrogatepass")
            entry |= {"bytes": len(data), "sha256": sha256(data)}
            value = self._call_value(text)
            if self._spans:
                entry[SPANS] = self._spans(text, self._max_tokens)
        except HookscopeError as error:
            named = entry["path"].rpartition(":")[0] in error.message
            skipped = error.message if named else f"{entry['path']}: {error.message}"
            return DatasetRow(None, {**entry, "skipped": skipped})
        return DatasetRow(value, {**entry, "tokens": token_count(value)})

    def _call_value(self, text: str) -> Any:
        if self._max_tokens is None:
            return self._recipe.run([text])
        assert self._recipe.truncate is not None
        return self._recipe.truncate([text], self._max_tokens)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are stored beside the texts."""
        return list(dict.fromkeys(name for table in self._texts.tables for name in table.columns))

    def first(self, skip_bad: bool) -> Any:
        """Return the value of the first text that can be used."""
        return first_usable(self, len(self), "texts", skip_bad)

    def other_length(self, value: Any) -> Any:
        """Return the value of one of the first texts that differs in length; None without one."""
        length = token_count(value)
        values = (self[i].value for i in range(min(len(self), _SEARCHED)))
        return next((v for v in values if v is not None and token_count(v) != length), None)

    def can_pad(self, value: Any) -> bool:
        """Whether texts like ``value`` can be padded: known arguments by name, one the mask."""
        args, kwargs = as_call(value)
        length = token_count(value)
        long = {name for name, t in kwargs.items() if isinstance(t, Tensor) and _has(t, length)}
        return not args and MASK in long and long <= set(self._fill)

    def batches(
        self, shard: Shard, size: int, most_tokens: int | None, padded: bool
    ) -> Iterator[Sequence[int]]:
        """Yield the rows of a shard in batches of texts of nearly the same length."""
        for block in shard.batches(size * _SORTED_BATCHES):
            self._read = {row: self._tokenize(row) for row in block}
            lengths = {row: read.entry.get("tokens", 0) for row, read in self._read.items()}
            batch: list[int] = []
            for row in sorted(block, key=lambda row: (lengths[row], row)):
                length = lengths[row]
                full = len(batch) == size or (
                    most_tokens is not None and (len(batch) + 1) * length > most_tokens
                )
                if batch and (full or (not padded and length != lengths[batch[-1]])):
                    yield batch
                    batch = []
                batch.append(row)
            yield batch

    def arrange(self, values: Sequence[Any]) -> Any:
        """Join the values of texts to the call value of a batch, padded on the right."""
        longest = max(map(token_count, values))
        padded = [self._padded(value, longest) for value in values]
        tensors = [[tensor for _, tensor in walk(as_call(value))] for value in padded]
        shapes = {tuple(tuple(t.shape[1:]) for t in each) for each in tensors}
        if len(shapes) > 1 or any(not t.ndim or len(t) != 1 for each in tensors for t in each):
            raise InputError(
                "The tensors that the tokenizer returns for single texts cannot be joined to a"
                " batch.",
                "Use --batch 1.",
            )
        if len(padded) == 1:
            return padded[0]
        columns = iter([torch.cat(column) for column in zip(*tensors, strict=True)])
        return map_tensors(padded[0], lambda path, tensor: next(columns))

    def _padded(self, value: Any, length: int) -> Any:
        missing = length - token_count(value)
        if not missing:
            return value
        own = length - missing
        return {
            name: torch.nn.functional.pad(tensor, (0, missing), value=self._fill[name])
            if name in self._fill and isinstance(tensor, Tensor) and _has(tensor, own)
            else tensor
            for name, tensor in as_call(value)[1].items()
        }


def token_count(value: Any) -> int:
    """Number of tokens of a text: the size of the second dimension of the first tensor, or 1."""
    args, kwargs = as_call(value)
    ids = kwargs.get("input_ids", next((t for _, t in walk((args, kwargs))), None))
    return int(ids.shape[1]) if isinstance(ids, Tensor) and ids.ndim > 1 else 1


def _has(tensor: Tensor, length: int) -> bool:
    """Whether a tensor has an entry for each token."""
    return tensor.ndim == 2 and tensor.shape[1] == length


def axes_of(column: RecordColumn, image: tuple[int, int] | None) -> Axes:
    """Return the dimensions of a column; of texts those that a trial with two lengths has found."""
    if column.tokens is None:
        return infer_axes(column.record.type, column.shape, image)
    return Axes(2 - column.tokens, (1 + column.tokens,), TOKENS)


def has_tokens(column: RecordColumn, axes: Axes, length: int | None) -> bool:
    """Whether the positions of a column are the tokens of the text."""
    if column.tokens is not None:
        return True
    return axes.kind == TOKENS and column.shape[axes.positions[0] - 1] == length


def stores_positions(reduction: Reduction | None) -> bool:
    """Whether what is stored of tokens says which of them a value is of."""
    if reduction is None:
        return True
    forms = {MAX: (None, TOKENS), TOPK: (TOKENS,)}
    return reduction.over in forms.get(reduction.name, ())


def check_reduces_tokens(column: RecordColumn, reduction: Reduction | None) -> None:
    """Raise LayerError unless rows with different numbers of tokens get one shape."""
    key, known = column.record.key, f"{', '.join(_ANY_LENGTH)}, topk:K:tokens"
    if reduction is None:
        raise LayerError(
            f"{key} has a vector for each token, and the texts differ in length.",
            f"Store one vector of each text: --reduce mean or last. All choices: {known}.",
        )
    if reduction.name in _ANY_LENGTH and reduction.over in (None, TOKENS):
        return
    if reduction.name == TOPK and reduction.over == TOKENS:
        return
    near = f"Write topk:{reduction.count}:tokens, for the largest values of each channel."
    raise LayerError(
        f"--reduce {reduction.text} cannot be applied to {key}: the texts differ in length.",
        near if reduction.name == TOPK else f"Choose among {known}.",
    )
