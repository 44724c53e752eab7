"""The texts of a dataset: one reader for each format of files, and a reader of single texts."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from hookscope.errors import EnvironmentFault, InputError, cause
from hookscope.escapes import encodable
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.hashes import sha256_of
from hookscope.files.optional_packages import optional_package
from hookscope.files.output_path import ADDRESS
from hookscope.files.own_folder import why_not_opened
from hookscope.files.text_sources import (
    CSV,
    DATASET,
    JSON_LINES,
    LINES,
    PARQUET,
    TextSource,
    text_sources,
)
from hookscope.files.words import join_first
from hookscope.inputs.text_tables import TextRow, TextTable, stored_values, type_name
from hookscope.specs.input_spec import paths_in
from hookscope.specs.model_spec import end_sentence

_MAX_FIELD = 1 << 27  # characters of a field in CSV
# The types of Arrow whose values are texts or numbers, as Arrow writes them.
_PLAIN = {"string", "large_string", "string_view", "bool", "halffloat", "float", "double"}
_PLAIN |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}

_MOVED = "texts are not at their path any more (moved or deleted)"
_CHANGED = "texts have changed since the features were extracted"
_ELSEWHERE = "texts are not beside the features folder (name their folder with --input)"
_SINGLE = {
    _MOVED: "text is not at its path any more (moved or deleted)",
    _CHANGED: "text has changed since the features were extracted",
    _ELSEWHERE: "text is not beside the features folder (name its folder with --input)",
}


class _PlacedTexts(TextTable):
    """Texts whose bytes are at known places in a file: each from its start to the next start."""

    def __init__(self, source: TextSource) -> None:
        super().__init__(source)
        self._starts = array("q")  # and the end of the last one

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _bytes(self, index: int) -> bytes:
        start, stop = self._starts[index : index + 2]
        with open(self._source.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)


class _LineTexts(_PlacedTexts):
    """Lines of a file as texts. Empty lines at its end are ignored."""

    _unit = "Line"

    def __init__(self, source: TextSource) -> None:
        super().__init__(source)
        self._starts.append(0)
        digest, last = hashlib.sha256(), 0
        with open(source.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                self._starts.append(self._starts[-1] + len(line))
                last = number if line.strip() else last
                self._note(line, number)
        del self._starts[last + 1 :]
        self.digest = digest.hexdigest()

    def _note(self, line: bytes, number: int) -> None:
        """Called with each line when the file is opened."""

    def _values(self, index: int) -> Mapping[str, Any]:
        return {self._column: self._line(index)}

    def _line(self, index: int) -> str:
        try:
            return _decoded(self._bytes(index), index + 1)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._where(index)} is not UTF-8 text: byte {error.start} of it is not valid.",
                WRITE_AGAIN,
            ) from error


class _JsonTexts(_LineTexts):
    """A field of each line of JSON, or the line if it is a string."""

    def __init__(self, source: TextSource) -> None:
        self._names: dict[str, None] = {}  # of fields with a plain value, in order
        self._nested: dict[str, None] = {}
        self._fields: dict[str, None] = {}  # of all lines, in order
        self._has_texts = False
        super().__init__(source)
        if self._fields and not self._has_texts:
            raise InputError(
                f"No line of {source.path!r} has a field {self._column!r}.",
                self._hint(list(self._fields)),
            )
        self._store_columns(self._names, self._nested)

    def read(self, index: int) -> TextRow:
        """Return the text of a line, and its other fields."""
        line, where = self._line(index), self._where(index)
        if not line.strip():
            return TextRow(line, where, {})
        try:
            value = json.loads(line, object_pairs_hook=_Object)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else cause(error)
            raise InputError(f"{where} is not valid JSON: {end_sentence(reason)}") from error
        if isinstance(value, str) and self._source.column is None:
            return TextRow(value, where, {})
        if not isinstance(value, _Object):
            raise InputError(
                f"{where} is {type_name(value)}, not an object with the field {self._column!r}."
            )
        if value.twice is not None:
            raise InputError(f"{where} has the field {value.twice!r} twice.", "Rename one of them.")
        if self._column not in value:
            raise InputError(f"{where} has no field {self._column!r}.", self._hint(list(value)))
        subject = f"The field {self._column!r} in {where[0].lower()}{where[1:]}"
        return TextRow(value[self._column], subject, stored_values(value, self.columns))

    def _note(self, line: bytes, number: int) -> None:
        """Note the fields of a line. What is wrong with it is reported when it is read."""
        try:
            value = json.loads(_decoded(line, number), object_pairs_hook=_Object)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            self._has_texts |= isinstance(value, str) and self._source.column is None
            return
        self._fields |= dict.fromkeys(value)
        self._has_texts |= self._column in value
        for name, field in value.items():
            if isinstance(field, dict | list):
                self._nested[name] = None
            elif field is not None:
                self._names[name] = None


class _Object(dict[str, Any]):
    """An object of JSON; ``twice`` is a field that it has several times, or None."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        names = [encodable(name) for name, _ in pairs]
        super().__init__(zip(names, (value for _, value in pairs), strict=True))
        short = len(self) < len(names)
        self.twice = next(n for n in names if names.count(n) > 1) if short else None


def _decoded(line: bytes, number: int) -> str:
    """The text of a line without its end; the first one may begin with a byte order mark."""
    return line.decode("utf-8" if number > 1 else "utf-8-sig").rstrip("\r\n")


class _CsvTexts(_PlacedTexts):
    """A column of a CSV file; the delimiter is a tab if the header has one, else , ; or |."""

    def __init__(self, source: TextSource) -> None:
        super().__init__(source)
        self._end = 0
        self.digest = sha256_of(source.path)
        with self._errors(), open(source.path, encoding="utf-8", newline="") as text:
            header = text.readline()
            self._delimiter = "\t" if "\t" in header else max(",;|", key=header.count)
            text.seek(0)
            self._find_rows(self._reader(self._counted(text)))
        self._choose_columns(self._names)

    def _values(self, index: int) -> Mapping[str, Any]:
        text = io.StringIO(self._bytes(index).decode(), newline="")
        with self._errors():
            row: list[str] = next(self._reader(text), [])
        if len(row) != len(self._names):
            raise InputError(
                f"{self._where(index)} has changed during the run.", "Run the command again."
            )
        return dict(zip(self._names, row, strict=True))

    def _find_rows(self, rows: Any) -> None:
        self._names = [name.strip() for name in next(rows, [])]
        start = self._end
        try:
            for row in rows:
                if row:  # not an empty line
                    self._starts.append(start)
                    self._check_width(row, rows.line_num)
                start = self._end
        except csv.Error as error:
            raise csv.Error(f"{error} (line {rows.line_num})") from error
        self._starts.append(self._end)

    def _check_width(self, row: list[str], line: int) -> None:
        if len(row) != len(self._names):
            raise InputError(
                f"Line {line} of {self._source.path!r} has {len(row)} fields, but the header has"
                f" {len(self._names)}.",
                "Put texts that contain the separator in double quotes.",
            )

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines, without a byte order mark, and add up their bytes."""
        for line in lines:
            first = not self._end
            self._end += len(line.encode())
            yield line.removeprefix("\ufeff") if first else line

    def _reader(self, lines: Iterable[str]) -> Any:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of decoding and of ``csv`` in the block into InputError."""
        limit = csv.field_size_limit(_MAX_FIELD)
        try:
            yield
        except UnicodeDecodeError as error:
            raise InputError(f"{self._source.path!r} is not UTF-8 text.", WRITE_AGAIN) from error
        except csv.Error as error:
            raise InputError(
                f"{self._source.path!r} is not a valid table: {error}.", WRITE_AGAIN
            ) from error
        finally:
            csv.field_size_limit(limit)


class _ParquetTexts(TextTable):
    """A column of a Parquet file. One row group at a time is in memory."""

    def __init__(self, source: TextSource) -> None:
        super().__init__(source)
        with optional_package("pyarrow", "parquet", "Reading Parquet"):
            from pyarrow import parquet
        self._parquet = parquet.ParquetFile
        self._files = _file_system(source.path) if ADDRESS in source.path else None
        with _arrow_errors(source), self._open() as table:
            self.digest = self._digest()
            groups = range(table.num_row_groups)
            counts = [table.metadata.row_group(group).num_rows for group in groups]
            schema = table.schema_arrow
        self._choose_columns(schema.names, nested_fields(schema))
        self._ends = list(accumulate(counts))
        self._in_memory: tuple[int, Any] | None = None

    def _digest(self) -> str:
        """The hash of a file; of an object in a store that of what the store says of it."""
        path = self._source.path
        return sha256_of(path) if self._files is None else str(self._files.ukey(path))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self._files is None:
            with self._parquet(self._source.path) as table:
                yield table
        else:
            with self._files.open(self._source.path, "rb") as file, self._parquet(file) as table:
                yield table

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _values(self, index: int) -> Mapping[str, Any]:
        number = bisect_right(self._ends, index)
        group = self._group(number)
        row = index - (self._ends[number - 1] if number else 0)
        names = (self._column, *self.columns)
        return {name: group.column(name)[row].as_py() for name in names}

    def _group(self, number: int) -> Any:
        if self._in_memory is None or self._in_memory[0] != number:
            self._in_memory = None  # so that only one is in memory
            names = [self._column, *self.columns]
            with _arrow_errors(self._source), self._open() as table:
                self._in_memory = number, table.read_row_group(number, columns=names)
        return self._in_memory[1]


def _file_system(address: str) -> Any:
    """The file system of an address, such as s3://bucket/table.parquet."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(address)[0]
    except ImportError as error:
        raise EnvironmentFault(
            f"{address} needs a package that is not installed: {error}.", "Install it with pip."
        ) from error
    except ValueError as error:
        raise InputError(f"{address} is not a valid address: {error}.") from error


def _check_own_files(folder: str) -> None:
    """Raise InputError if a folder of the package ``datasets`` names a file outside of it."""
    try:
        state = json.loads(Path(folder, "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return  # the package says what is wrong with it
    for name in names:
        if why := why_not_opened(os.path.join(folder, name), folder):
            raise InputError(
                f"state.json in {folder!r} names {name!r}, which {why}.",
                "A data set may name its own files only. Copy the file into it.",
            )


class _DatasetTexts(TextTable):
    """A column of a folder of the package ``datasets``, which maps it into memory."""

    def __init__(self, source: TextSource) -> None:
        super().__init__(source)
        with optional_package("datasets", "datasets", repr(source.path)):
            import datasets
        _check_own_files(source.path)
        try:
            table = datasets.load_from_disk(source.path)
        except Exception as error:  # its readers raise nearly any type
            raise InputError(
                f"{source.path!r} cannot be read as a dataset: {end_sentence(cause(error))}",
                WRITE_AGAIN,
            ) from error
        schema = table.features.arrow_schema
        self._choose_columns(schema.names, nested_fields(schema))
        self.digest = f"{table._fingerprint}:{len(table)}"
        plain = table.with_format(None)  # the folder may name another, such as torch
        self._table = plain.select_columns([self._column, *self.columns])
        self._classes: dict[str, Sequence[str]] = {
            name: feature.names
            for name, feature in self._table.features.items()
            if isinstance(feature, datasets.ClassLabel)
        }

    def __len__(self) -> int:
        return len(self._table)

    def _values(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._table[index]
        return {
            name: class_name(self._classes[name], value) if name in self._classes else value
            for name, value in row.items()
        }


def class_name(names: Sequence[str], number: int | None) -> str | None:
    """Return the name of a class; None without one, which datasets also mark by -1."""
    return names[number] if number is not None and 0 <= number < len(names) else None


def nested_fields(schema: Any) -> list[str]:
    """Return the fields whose values are neither texts nor numbers, nor categories of them."""
    import pyarrow

    types = {
        name: kind.value_type if isinstance(kind, pyarrow.DictionaryType) else kind
        for name, kind in zip(schema.names, schema.types, strict=True)
    }
    return [name for name, kind in types.items() if str(kind) not in _PLAIN]


@contextmanager
def _arrow_errors(source: TextSource) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{source.path!r} cannot be read as Parquet: {end_sentence(cause(error))}", WRITE_AGAIN
        ) from error
    except Exception as error:
        if ADDRESS not in source.path:
            raise
        raise InputError(  # each store raises its own
            f"{source.path!r} cannot be read: {end_sentence(cause(error))}",
            "Check the address and your permissions.",
        ) from error


_READERS: dict[str, type[TextTable]] = {
    LINES: _LineTexts,
    JSON_LINES: _JsonTexts,
    CSV: _CsvTexts,
    PARQUET: _ParquetTexts,
    DATASET: _DatasetTexts,
}


def open_texts(source: TextSource) -> TextTable:
    """Open a source of texts."""
    try:
        table = _READERS[source.kind](source)
    except OSError as error:
        raise InputError(f"{source.path!r} cannot be read: {error.strerror or error}.") from error
    if not len(table):
        raise InputError(f"{source.path!r} contains no texts.", WRITE_AGAIN)
    return table


class StoredTexts:
    """Reads single texts by their names in the table of inputs, such as ``reviews.jsonl:3``.

    Only files in one of the ``places`` are opened.
    """

    def __init__(self, specs: Sequence[str], places: Sequence[str]) -> None:
        self._specs, self._places = specs, places
        self._tables: dict[str, list[TextTable]] = {}
        self._missing: dict[str, dict[str, None]] = {}  # by the reason, names in order
        self._errors: dict[str, None] = {}  # of files that are there and cannot be read

    def read(self, name: str, sha256: str | None) -> str | None:
        """Return a text; None if it is not there any more, or has changed."""
        path, _, number = name.rpartition(":")
        if why_not_opened(path, *self._places):
            self._missing.setdefault(_ELSEWHERE, {})[name] = None
            return None
        if path not in self._tables:
            self._tables[path] = self._open(path)
        for table in self._tables[path]:  # one for each column of the file that was extracted
            try:
                text = table.read(int(number) - 1).text
            except (InputError, IndexError, OSError, OverflowError, ValueError):
                continue
            if sha256 in (None, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()):
                return text
        if self._tables[path] or not os.path.exists(path):
            reason = _CHANGED if self._tables[path] else _MOVED
            self._missing.setdefault(reason, {})[name] = None
        return None

    def _open(self, path: str) -> list[TextTable]:
        tables = []
        for spec in self._specs:
            if any(why_not_opened(one, *self._places) for one in paths_in(spec)):
                continue
            try:
                sources = [s for s in text_sources([spec]) or () if s.path == path]
                tables += [open_texts(source) for source in sources]
            except (InputError, EnvironmentFault) as error:
                if os.path.exists(path):
                    self._errors[f"{error.message} Positions are shown instead."] = None
        return tables

    def notes(self) -> list[str]:
        """Return which texts could not be read, and why, in a sentence for each reason."""
        return [*self._errors] + [
            f"{len(names)} {reason if len(names) > 1 else _SINGLE[reason]}:"
            f" {join_first(names)}. Positions are shown instead."
            for reason, names in self._missing.items()
        ]
