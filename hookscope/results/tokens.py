"""The tokens of a language model's input, and the dimension of a recorded tensor that they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookscope.results.metadata import StoredPositions, TokensMetadata
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import ATTENTION, PARAM_GRAD, PARAM_UPDATE

_DECODER = re.compile(r"(^|\.)decoder(\.|$)|^lm_head$")
_CROSS_ATTENTION = re.compile(r"encoder_attn|EncDecAttention|crossattention|cross_attn")


@dataclass(frozen=True)
class PromptTokens:
    """The token ids of one argument of the model, by row; ``texts`` is None without a vocabulary.

    ``padding`` are the positions of each row that are padding, in ascending order.
    """

    argument: str
    ids: tuple[tuple[int, ...], ...]
    texts: tuple[tuple[str, ...], ...] | None
    padding: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        """The number of positions, padding included."""
        return len(self.ids[0])

    def label(self, row: int, position: int) -> str:
        """Return the text of a token, or its id without a vocabulary."""
        return str(self.ids[row][position]) if self.texts is None else self.texts[row][position]

    def real(self, row: int) -> tuple[int, ...]:
        """Return the positions of a row that are not padding."""
        padding = set(self.padding[row])
        return tuple(position for position in range(self.length) if position not in padding)

    def part(self, rows: Sequence[Sequence[int]]) -> PromptTokens:
        """Return some positions of each row."""

        def chosen(values: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
            return tuple(
                tuple(row[n] for n in wanted) for row, wanted in zip(values, rows, strict=True)
            )

        texts = None if self.texts is None else chosen(self.texts)
        return PromptTokens(self.argument, chosen(self.ids), texts, ((),) * len(rows))

    def to_json(self) -> TokensMetadata:
        """Return the entry of the metadata."""
        entry: TokensMetadata = {
            "argument": self.argument,
            "ids": [list(row) for row in self.ids],
            "padding": [list(row) for row in self.padding],
        }
        if self.texts is not None:
            entry["texts"] = [list(row) for row in self.texts]
        return entry


def is_later_step(record: Record, metadata: Mapping[str, Any]) -> bool:
    """Whether a tensor belongs to a step of a generation after the first, with the new tokens."""
    return record.call > 1 and is_generated(metadata)


def is_generated(metadata: Mapping[str, Any]) -> bool:
    """Whether a run generated tokens, so that its later calls have the new ones."""
    return (metadata.get("options") or {}).get("generate") is not None


def stored_positions(key: str, metadata: Mapping[str, Any]) -> StoredPositions | None:
    """Return which positions of a tensor are stored; None if all are."""
    return next((e for e in metadata.get("positions", ()) if e["key"] == key), None)


def prompts_of(metadata: Mapping[str, Any]) -> tuple[PromptTokens, ...]:
    """Return the tokens of each argument with token ids; empty for other models."""
    return tuple(
        PromptTokens(
            entry["argument"],
            tuple(map(tuple, entry["ids"])),
            tuple(map(tuple, entry["texts"])) if "texts" in entry else None,
            tuple(map(tuple, entry["padding"])),
        )
        for entry in metadata.get("tokens", ())
    )


def sequence_dims(record: Record, metadata: Mapping[str, Any]) -> dict[int, PromptTokens]:
    """Return the dimensions of a recorded tensor that are the sequence, each with its tokens.

    The sequence is dimension 1 of ``(N, L, ...)``, with the rows of the batch as dimension 0; of
    attention weights ``(N, heads, L, S)`` it is dimensions 2 and 3. In a tensor of two dimensions
    only integers and bools have a sequence: floats are one vector for each row. In a run that
    generates tokens, only the first call of a layer has the tokens of the input.
    """
    prompts = prompts_of(metadata)
    shape = record.shape
    if not prompts or record.kind in (PARAM_GRAD, PARAM_UPDATE):
        return {}
    if is_later_step(record, metadata):
        return {}
    if stored := stored_positions(record.key, metadata):
        whole = (*shape[: stored["dim"]], stored["length"], *shape[stored["dim"] + 1 :])
        complete = sequence_dims(replace(record, key="", shape=whole), metadata)
        rows = stored["rows"]
        return {n: p.part(rows) if n == stored["dim"] else p for n, p in complete.items()}
    in_decoder = bool(_DECODER.search(record.module))
    if record.module == ROOT:  # such as output.logits and output.encoder_last_hidden_state
        in_decoder = "encoder" not in record.what.replace("decoder", "")
    if record.kind.startswith(ATTENTION):
        crossed = bool(_CROSS_ATTENTION.search(record.module))
        sides = {len(shape) - 2: in_decoder, len(shape) - 1: in_decoder and not crossed}
        if len(shape) not in (3, 4):
            return {}
    else:
        floats = not record.dtype.startswith(("int", "uint", "bool"))
        if len(shape) < 2 or (len(shape) == 2 and floats):
            return {}
        if len(shape) > 3 and shape[1] == shape[2]:  # of a cache, the first of them are heads
            return {}
        sides = {1: in_decoder}
    found = {}
    for dim, decoder in sides.items():
        fitting = [p for p in prompts if (len(p.ids), p.length) == (shape[0], shape[dim])]
        preferred = [p for p in fitting if p.argument.startswith("decoder") == decoder]
        if fitting:
            found[dim] = (preferred or fitting)[0]
    return found


def token_labels(
    record: Record, metadata: Mapping[str, Any], index: Sequence[int]
) -> tuple[str, ...]:
    """Return the token at each dimension of an entry that is the sequence."""
    dims = sequence_dims(record, metadata)
    return tuple(prompt.label(index[0], index[dim]) for dim, prompt in dims.items())


def padded_dims(record: Record, metadata: Mapping[str, Any]) -> dict[int, PromptTokens]:
    """Return the sequence dimensions of a tensor with padding, whose statistics leave it out."""
    dims = sequence_dims(record, metadata)
    padded = any(any(prompt.padding) for prompt in dims.values())
    return dims if padded else {}
