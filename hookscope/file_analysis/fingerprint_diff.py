"""Comparison of two fingerprints of models, without torch."""

from __future__ import annotations

from collections.abc import Callable

from hookscope.errors import RequestError
from hookscope.file_analysis.record_matches import LayerFilter
from hookscope.files.words import shape_text
from hookscope.results.diff_result import DIFFERS, EQUAL
from hookscope.results.fingerprint import FingerprintEntry, ModelFingerprint
from hookscope.results.fingerprint_diff import (
    LIMIT,
    ROUNDING,
    TWO_FILES,
    EntryChange,
    FingerprintDiff,
)
from hookscope.results.records import Record
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.specs.tolerances import ExactDiffOptions


def compare_fingerprints(
    a: ModelFingerprint,
    b: ModelFingerprint,
    options: ExactDiffOptions,
    sides: tuple[str, str] = TWO_FILES,
) -> FingerprintDiff:
    """Compare the tensors of two fingerprints by name; A is the reference."""
    chosen = _choice((a, b), tuple(options.layers))
    pairs = [(x, b.by_key[x.key]) for x in a.entries if x.key in b.by_key and chosen(x)]
    if not pairs:
        raise RequestError(
            f"No tensor in {sides[0]} matches one in {sides[1]}, because no name is in both.",
            "Name two fingerprints of one architecture.",
        )
    rows = [(x, y, _change(x, y, sides)) for x, y in pairs]
    verdicts = {row.key: row.verdict for _, _, row in rows}
    return FingerprintDiff(
        a,
        b,
        tuple(row for x, y, row in rows if not _is_repeated(x, y, row, verdicts)),
        _alone(a, b, chosen),
        _alone(b, a, chosen),
        options.strict,
        sides,
    )


def _choice(
    sides: tuple[ModelFingerprint, ModelFingerprint], layers: tuple[str, ...]
) -> Callable[[FingerprintEntry], bool]:
    """Return what says whether an entry is of a selected layer."""
    selected = LayerFilter(layers, (), None)
    selected.check_layers(_record(entry) for side in sides for entry in side.entries)
    return lambda entry: selected(_record(entry))


def _record(entry: FingerprintEntry) -> Record:
    module, call = module_of(entry)
    kind = INPUT if entry.is_input else OUTPUT
    about = (entry.key, module, entry.type, call, entry.what, kind, entry.shape, entry.dtype)
    return Record(*about, device="")


def module_of(entry: FingerprintEntry) -> tuple[str, int]:
    """Return the module of an entry and the number of the call, from 1."""
    module, mark, number = entry.call.rpartition(":")
    return (module, int(number)) if mark and number.isdigit() else (entry.call, 1)


def _change(a: FingerprintEntry, b: FingerprintEntry, sides: tuple[str, str]) -> EntryChange:
    in_a, in_b = (f"in {side}" for side in sides)
    error, rounding = a.distance(b), max(a.rounding or 0.0, b.rounding or 0.0)
    notes = []
    if a.shape != b.shape:
        notes.append(f"shape {shape_text(a.shape)} {in_a}, {shape_text(b.shape)} {in_b}")
    if a.dtype != b.dtype:
        notes.append(f"{a.dtype} {in_a}, {b.dtype} {in_b}")
    elif a.nonfinite != b.nonfinite:
        notes.append(f"entries that are not finite: {a.nonfinite:,} {in_a}, {b.nonfinite:,} {in_b}")
    differs = bool(notes) or error > LIMIT * rounding
    if a.type != b.type:
        notes.append(f"{b.type} {in_b}")
    verdict = DIFFERS if differs else ROUNDING if error else EQUAL
    module, _ = module_of(a)
    return EntryChange(
        a.key, module, a.type, a.what, a.shape, error, rounding, verdict, "; ".join(notes)
    )


def _is_repeated(
    a: FingerprintEntry, b: FingerprintEntry, row: EntryChange, verdicts: dict[str, str]
) -> bool:
    """Whether a row says the same as that of an earlier tensor, which has the same bits."""
    if not a.source or verdicts.get(a.source) != row.verdict:
        return False
    return a.source == b.source or row.is_input or row.verdict != DIFFERS


def _alone(
    one: ModelFingerprint, other: ModelFingerprint, chosen: Callable[[FingerprintEntry], bool]
) -> tuple[str, ...]:
    """The keys of one side alone; of inputs, those that no module returned."""
    return tuple(
        entry.key
        for entry in one.entries
        if entry.key not in other.by_key and chosen(entry) and not (entry.is_input and entry.source)
    )
