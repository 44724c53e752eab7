"""Where the positions that a user names are in a recorded tensor, for each row of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from hookscope.errors import RequestError
from hookscope.results.dimensions import TokenGrid, channel_dim, find_token_grid
from hookscope.results.metadata import image_size
from hookscope.results.records import Record, Recording
from hookscope.results.tokens import (
    PromptTokens,
    is_generated,
    is_later_step,
    sequence_dims,
    stored_positions,
)
from hookscope.specs.position_spec import (
    ClassToken,
    Entry,
    IndexRange,
    Patch,
    Positions,
    TokenText,
    split_positions,
)
from hookscope.specs.tensor_key import ATTENTION, Index, choose_keys


@dataclass(frozen=True)
class LocatedPositions:
    """Positions in a tensor along ``dim``: as many of each row, in ascending order."""

    dim: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Sequence:
    """A dimension of a tensor: the indices of the tokens of each row, with what names them."""

    dim: int
    real: tuple[tuple[int, ...], ...]
    prompt: PromptTokens | None = None
    grid: TokenGrid | None = None


def locate(
    positions: Positions, record: Record, metadata: Mapping[str, Any]
) -> LocatedPositions | None:
    """Return where positions are in a tensor; None if they do not apply to it.

    They do not apply to a tensor without a sequence dimension. In the later steps of a generation
    only those counted from the end apply, to the tokens of that step.
    """
    stored = stored_positions(record.key, metadata)
    if stored is not None:
        return _locate_in_part(positions, record, metadata, stored)
    later = is_later_step(record, metadata)
    sequence = None if later else _sequence(record, metadata)
    if sequence is None and is_generated(metadata):
        # A later step, or scores that a model computes for the last token of the input alone.
        sequence, later = _later_sequence(record), True
    if sequence is None:
        return None
    entries = positions.entries
    if later:
        step = len(sequence.real[0])
        entries = tuple(e for e in entries if isinstance(e, IndexRange) and -step <= e.first < 0)
        if not entries:
            return None
    rows = tuple(
        tuple(sorted({n for entry in entries for n in _indices(entry, sequence, row)}))
        for row in range(len(sequence.real))
    )
    _check_tokens_found(entries, rows, sequence)
    counts = [len(row) for row in rows]
    if len(set(counts)) > 1:
        raise RequestError(
            f"@{positions.text} names {counts[0]} positions of row 1 and"
            f" {next(n for n in counts if n != counts[0])} of another row.",
            "Name positions by number, or give the texts one by one.",
        )
    return LocatedPositions(sequence.dim, rows)


def position_counts(record: Record, metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of positions of each row, without padding; empty without a sequence."""
    sequence = _sequence(record, metadata)
    return () if sequence is None else tuple(map(len, sequence.real))


def _later_sequence(record: Record) -> _Sequence | None:
    if len(record.shape) != 3:
        return None
    return _Sequence(1, (tuple(range(record.shape[1])),) * record.shape[0])


def _sequence(record: Record, metadata: Mapping[str, Any]) -> _Sequence | None:
    """The sequence dimension of a tensor; of attention weights, the queries'."""
    dims = sequence_dims(record, metadata)
    if dims:
        dim, prompt = min(dims.items(), key=lambda item: item[0])
        return _Sequence(dim, tuple(map(prompt.real, range(len(prompt.ids)))), prompt)
    shape = record.shape
    attention = record.kind.startswith(ATTENTION) and len(shape) == 4
    plain = len(shape) == 3 and channel_dim(record.type, 3) == 2 and record.kind[-5:] != ".grad"
    tokens = plain or (len(shape) == 3 and record.kind in ("output.grad", "input.grad"))
    if metadata.get("tokens") or not (attention or tokens) or not shape[0]:
        return None
    dim = 2 if attention else 1
    image = image_size(metadata)
    grid = find_token_grid(shape[dim], image) if image else None
    if image and grid is None:
        return None
    return _Sequence(dim, (tuple(range(shape[dim])),) * shape[0], grid=grid)


def _indices(entry: Entry, sequence: _Sequence, row: int) -> Sequence[int]:
    """The indices of one entry in a row."""
    real = sequence.real[row]
    if isinstance(entry, IndexRange):
        ends = []
        for end in (entry.first, entry.last):
            if not -len(real) <= end < len(real):
                raise RequestError(
                    f"Position {end} is outside row {row + 1}, which has {len(real)} tokens.",
                    f"Count from 0 to {len(real) - 1}, or from -1 at the end.",
                )
            ends.append(end % len(real))
        if ends[0] > ends[1]:
            raise RequestError(
                f"The positions {entry.first}-{entry.last} are empty in row {row + 1}.",
                "Name the first position before the last.",
            )
        return real[ends[0] : ends[1] + 1]
    if isinstance(entry, TokenText):
        return _token_indices(entry.text, sequence, row)
    grid = sequence.grid
    if grid is None:
        name = "cls" if isinstance(entry, ClassToken) else f"{entry.row}x{entry.column}"
        raise RequestError(
            f"@{name} is for the patches of an image, and the model has no image as its input.",
            "Name positions by number, or a token in quotes.",
        )
    if isinstance(entry, ClassToken):
        if not grid.prefix:
            raise RequestError(
                f"There is no class token before the {grid.height}x{grid.width} patches.",
                "Name a patch: @ROWxCOLUMN.",
            )
        return (0,)
    return (_patch_index(entry, grid),)


def _patch_index(patch: Patch, grid: TokenGrid) -> int:
    if patch.row >= grid.height or patch.column >= grid.width:
        raise RequestError(
            f"There is no patch {patch.row}x{patch.column} among {grid.height}x{grid.width}.",
            f"Use rows from 0 to {grid.height - 1} and columns from 0 to {grid.width - 1}.",
        )
    return grid.prefix + patch.row * grid.width + patch.column


def _token_indices(text: str, sequence: _Sequence, row: int) -> list[int]:
    prompt = sequence.prompt
    if prompt is None or prompt.texts is None:
        raise RequestError(
            f"The texts of the tokens are not known, so {text!r} cannot be found.",
            "Name positions by number, or give --tokenizer FILE.",
        )
    return [n for n in sequence.real[row] if prompt.texts[row][n] == text]


def _check_tokens_found(
    entries: Sequence[Entry], rows: Sequence[Sequence[int]], sequence: _Sequence
) -> None:
    """Raise RequestError for the text of a token that is in no row."""
    prompt = sequence.prompt
    for entry in entries:
        if not isinstance(entry, TokenText) or prompt is None or prompt.texts is None:
            continue
        lines = [[prompt.label(row, n) for n in real] for row, real in enumerate(sequence.real)]
        if any(entry.text in line for line in lines):
            continue
        if parts := next(filter(None, (_parts(entry.text, line) for line in lines)), None):
            joined = " + ".join(map(repr, parts))
            raise RequestError(
                f"{entry.text!r} is {len(parts)} tokens in the prompt: {joined}.",
                "Name one of them, or positions by number.",
            )
        near = next((t for line in lines for t in line if t.strip() == entry.text.strip()), None)
        hint = f"{near!r} is a token of it." if near else f"Its tokens: {'|'.join(lines[0][:16])}"
        raise RequestError(f"The token {entry.text!r} is not in the prompt.", hint)


def _parts(text: str, line: Sequence[str]) -> list[str]:
    """The neighbouring tokens that make up a text; empty if there are none."""
    for start in range(len(line)):
        end, joined = start, ""
        while end < len(line) and len(joined) < len(text):
            joined, end = joined + line[end], end + 1
            if joined == text:
                return list(line[start:end])
    return []


def _locate_in_part(
    positions: Positions,
    record: Record,
    metadata: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> LocatedPositions | None:
    """Where positions of the input are in a tensor of which only some are stored."""
    shape = list(record.shape)
    shape[stored["dim"]] = stored["length"]
    whole = replace(record, key="", shape=tuple(shape))
    located = locate(positions, whole, metadata)
    if located is None:
        return None
    rows = []
    for wanted, present in zip(located.rows, stored["rows"], strict=True):
        missing = [n for n in wanted if n not in present]
        if missing:
            raise RequestError(
                f"Position {missing[0]} of {record.key} is not in the file, which has"
                f" {', '.join(map(str, present))}.",
                "Record it again with that position.",
            )
        rows.append(tuple(present.index(n) for n in wanted))
    return LocatedPositions(located.dim, tuple(rows))


def choose_parts(
    selectors: Sequence[str], recording: Recording, path: object, listing: str = ""
) -> list[tuple[str, Index]]:
    """Return the keys that selectors select, each with a slice; see ``tensor_key.choose_keys``.

    A selector may end in positions instead of a slice. Then there is a slice for each row of the
    batch and each run of neighbouring positions.
    """
    keys = [record.key for record in recording.records]
    found: dict[tuple[str, str], tuple[str, Index]] = {}
    for selector in selectors:
        is_name = selector in keys or any(selector == record.module for record in recording.records)
        name, positions = (selector, None) if is_name else split_positions(selector)
        chosen = choose_keys([name], keys, path, listing)
        if positions is not None:
            chosen = [
                (record.key, index)
                for record in recording.records
                for key, _ in chosen
                if record.key == key
                for index in _slices(positions, record, recording.metadata)
            ]
            if not chosen:
                raise RequestError(
                    f"{name!r} has no tensor with positions: no dimension is the sequence.",
                    "Leave out the part after the @, or give a slice: KEY[0,3].",
                )
        found |= {(key, str(index)): (key, index) for key, index in chosen}
    return list(found.values())


def _slices(positions: Positions, record: Record, metadata: Mapping[str, Any]) -> Iterator[Index]:
    """A slice for each row and each run of neighbouring positions."""
    located = locate(positions, record, metadata)
    if located is None:
        return
    between = (slice(None),) * (located.dim - 1)
    for row, indices in enumerate(located.rows):
        for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
            run_of = [n for _, n in run]
            last = slice(run_of[0], run_of[-1] + 1) if len(run_of) > 1 else run_of[0]
            yield (row, *between, last)
