"""Two captures, one pair of tensors at a time, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from hookscope.results.diff.choosing import Choice, concluded, narrowed
from hookscope.results.diff.judging import Judge
from hookscope.results.diff.matching import match
from hookscope.results.diff.result import Diff
from hookscope.results.reader import OpenCapture, open_capture
from hookscope.results.records import Record

Word = str | os.PathLike[str]


def compare_captures(
    words: tuple[Word, Word],
    prefixes: Mapping[str, str],
    judge: Judge,
    choice: Choice,
    kinds: Sequence[str],
    strict: bool,
) -> Diff:
    """Compare two files; of each tensor a block is in memory.

    Args:
        words: the two files.
        prefixes: prefixes of names in A and what stands for them in B.
        judge: decides what differs.
        choice: the layers.
        kinds: ``output``, ``input``, their gradients included; none means everything.
        strict: whether what has no partner is a difference.

    Raises:
        ResultsFileError: a file cannot be read.
        RequestError: nothing of A has a partner in B, or a pattern or prefix matches nothing.
    """
    a, b = files = open_capture(words[0]), open_capture(words[1])
    choice.demand_layers([record for file in files for record in file.records])

    def chosen(record: Record) -> bool:
        return choice(record) and (not kinds or record.kind.partition(".")[0] in kinds)

    found = narrowed(match(a.records, b.records, prefixes), chosen, chosen)
    pairs = [
        judge.pair(one, two, by, partial(a.blocks, one.key), partial(b.blocks, two.key))
        for one, two, by in found.pairs
    ]
    origin = {"a": _origin(a), "b": _origin(b)}
    return concluded(found, pairs, strict=strict, equal_nan=judge.equal_nan, **origin)


def _origin(file: OpenCapture) -> dict[str, object]:
    return {"file": os.fspath(file.path), **file.metadata}
