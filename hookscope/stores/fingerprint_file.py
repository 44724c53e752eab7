"""Reads the fingerprint of a model, a text file that ``ModelFingerprint.save`` wrote."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hookscope.errors import ResultsFileError, cause
from hookscope.files import strict_json
from hookscope.files.output_path import FINGERPRINT_MARK
from hookscope.files.suggestions import near_files
from hookscope.results.fingerprint import COLUMNS, FORMAT, FingerprintEntry, ModelFingerprint
from hookscope.results.projections import PROJECTIONS

_LARGEST = 1 << 26  # bytes: that of a model with a hundred thousand layers
_NUMBERS = slice(4, 9)  # the columns of mean, std, min, max, norm


def open_fingerprint(path: str | os.PathLike[str]) -> ModelFingerprint:
    """Return the fingerprint in a file.

    Raises:
        ResultsFileError: there is no such file, or it is not a fingerprint, or is damaged.
    """
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise ResultsFileError(
                f"Cannot read {path}: it is too large for a fingerprint.", "Name another file."
            )
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsFileError(
            f"Cannot read {path}: {cause(error)}.", near_files(path, "Check the path.")
        ) from error
    version = lines[0].removeprefix(FINGERPRINT_MARK) if lines else ""
    if not lines or not lines[0].startswith(FINGERPRINT_MARK):
        raise ResultsFileError(
            f"{path} is not a fingerprint.", "Write one: hookscope fingerprint MODEL -o FILE.fp"
        )
    if version != str(FORMAT):
        raise ResultsFileError(
            f"{path} has format {version}, and this hookscope reads format {FORMAT}.",
            "Install a newer hookscope, or write the file again.",
        )
    return _EntryReader(path).read(lines[1:])


@dataclass
class _EntryReader:
    """Collects the entries of a file, line by line."""

    path: str | os.PathLike[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, FingerprintEntry] = field(default_factory=dict)
    lines: list[FingerprintEntry] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> ModelFingerprint:
        for number, line in enumerate(lines, 2):
            try:
                if line.startswith("#"):
                    self._add_metadata(line)
                elif line:
                    self._add_line(line.split())
            except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
                raise ResultsFileError(
                    f"{self.path} is damaged in line {number}.", "Write the file again."
                ) from error
        return ModelFingerprint(tuple(self.entries.values()), self.metadata)

    def _add_metadata(self, line: str) -> None:
        name, mark, text = line[2:].partition(": ")
        if mark:
            self.metadata[name] = strict_json.loads(text)

    def _add_line(self, cells: Sequence[str]) -> None:
        if cells[4].startswith("="):
            earlier = self.entries[_name(cells[4][1:])]
            source = earlier.source or earlier.key
            entry = replace(earlier, key=_name(cells[0]), type=_name(cells[1]), source=source)
            self._add_inputs(entry, cells[5])
        else:
            entry = _entry(dict(zip(COLUMNS, cells, strict=True)), cells[_NUMBERS])
            self._add_inputs(entry, cells[COLUMNS.index("inputs")])
        self.lines.append(entry)
        self.entries[entry.key] = entry

    def _add_inputs(self, entry: FingerprintEntry, text: str) -> None:
        """Add the inputs of a call that are earlier tensors, before its output."""
        for one in text.split(",") if text != "-" else ():
            what, _, distance = one.partition("=")
            if int(distance) >= 0:
                raise ValueError(one)
            earlier = self.lines[int(distance)]
            key = f"{entry.call}/{_name(what)}"
            source = earlier.source or earlier.key
            self.entries[key] = replace(earlier, key=key, type=entry.type, source=source)


def _entry(cells: dict[str, str], numbers: Sequence[str]) -> FingerprintEntry:
    shape = cells["shape"]
    sums = b64decode(cells["projections"], validate=True)
    if len(sums) != 4 * PROJECTIONS:
        raise ValueError("projections")
    mean, std, low, high, norm = map(_number, numbers)
    return FingerprintEntry(
        _name(cells["key"]),
        _name(cells["type"]),
        cells["dtype"],
        () if shape == "scalar" else tuple(map(int, shape.split("x"))),
        *(mean, std, low, high, norm),
        nonfinite=int(cells["nonfinite"]),
        rounding=_number(cells["rounding"]),
        digest=cells["hash"],
        sums=sums,
    )


def _name(text: str) -> str:
    return str(strict_json.loads(text)) if text.startswith('"') else text


def _number(text: str) -> float | None:
    return None if text == "-" else float(text)
