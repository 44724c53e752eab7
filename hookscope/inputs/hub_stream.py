"""The rows of a split of a data set, streamed by the package ``datasets``: images or texts.

A stream is read in order. A row after the one that was read last is reached by reading on, one
before it, as of a run that is resumed, by a new stream that skips as many rows.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from PIL import Image

from hookscope.errors import InputError, cause
from hookscope.files.hub_source import HubSource
from hookscope.files.own_folder import why_not_opened
from hookscope.files.suggestions import did_you_mean
from hookscope.files.text_sources import DEFAULT_COLUMN, HUB, TextSource
from hookscope.files.words import list_first
from hookscope.inputs.image_decoder import decode_image
from hookscope.inputs.text_formats import class_name, nested_fields
from hookscope.inputs.text_tables import MAX_NAMES, TextTable
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

_HUB_FILES = "hf://datasets/"


class HubStream:
    """The rows of a split by their numbers, from 0.

    Attributes:
        source: the spec.
        column: the column of images or texts.
        is_image: whether it has images.
        label: the column of labels of images; None without one.
        digest: a text that changes with the data set.
    """

    def __init__(self, source: HubSource) -> None:
        import datasets

        self.source = source
        table, version = _open_split(source)
        features = table.features
        if features is None:  # of files without types
            with _reading(source):
                table = table._resolve_features()
            features = table.features
        self.features: Mapping[str, Any] = features
        images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
        self.column = self._choose_column(images)
        self.is_image = self.column in images
        self.schema = features.arrow_schema
        self.classes = {
            name: kind.names
            for name, kind in features.items()
            if isinstance(kind, datasets.ClassLabel)
        }
        self.label = next(iter(self.classes), "label" if "label" in features else None)
        for name in images:  # what cannot be decoded is a row that cannot be used, not the end
            table = table.cast_column(name, datasets.Image(decode=False))
        self._table = table
        self._rows: Iterator[dict[str, Any]] = iter(())
        self._next = 0
        self._last: tuple[int, dict[str, Any]] | None = None
        self._count = self._known_count()
        about = (source.name, source.config, source.split, self._count, version)
        self.digest = hashlib.sha256(repr(about).encode(errors="backslashreplace")).hexdigest()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._last is None or self._last[0] != index:
            self._last = index, self._read(index)
        return self._last[1]

    def _read(self, index: int) -> dict[str, Any]:
        with _reading(self.source):
            if index < self._next or not self._next:
                self._rows, self._next = iter(self._table.skip(index)), index
            for row in self._rows:
                self._next += 1
                if self._next > index:
                    return row
        raise InputError(
            f"{self.source.path!r} ends before row {index + 1}, but is said to have {len(self)}.",
            "Download it again, or report it to its authors.",
        )

    def _choose_column(self, images: list[str]) -> str:
        names = list(self.features)
        given = self.source.column
        column = given or (images[0] if len(images) == 1 else DEFAULT_COLUMN)
        if column not in names:
            what = f"no column {column!r}" if given else "neither one column of images nor 'text'"
            near = did_you_mean(given, names) if given else ""
            example = f"Name one: {self.source.path}:{names[0]}." if names and not near else ""
            has = f"It has {list_first(names, MAX_NAMES) or 'none'}."
            raise InputError(
                f"{self.source.path!r} has {what}.", " ".join(filter(None, (near, has, example)))
            )
        kind = self.features[column]
        if column not in images and getattr(kind, "dtype", None) not in ("string", "large_string"):
            raise InputError(
                f"The column {column!r} of {self.source.path!r} has neither images nor texts.",
                f"It has {list_first(names, MAX_NAMES)}.",
            )
        return column

    def _known_count(self) -> int:
        """The number of rows: as the data set says, or else counted by reading it once."""
        split = (self._table.info.splits or {}).get(self.source.split)
        count = split.num_examples if split is not None else 0
        if not count:
            with _reading(self.source):
                count = sum(1 for _ in self._table)
            log.info("input: counted %s rows, which %s does not say", count, self.source.path)
        if not count:
            raise InputError(f"{self.source.path!r} is empty.", "Name another split.")
        return int(count)


class HubImages:
    """The images of a data set as a Dataset: each an image, or a pair of one and its label."""

    def __init__(self, stream: HubStream) -> None:
        self._stream = stream

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> Image.Image | tuple[Image.Image, Any]:
        stream = self._stream
        row = stream[index]
        name = f"{stream.source.path}:{index + 1}"
        image = decode_image(_image_bytes(row[stream.column], name, stream.source), name)
        if stream.label is None:
            return image
        return image, plain_class(stream, stream.label, row)


class HubTexts(TextTable):
    """The texts of a data set, and its other columns."""

    def __init__(self, stream: HubStream) -> None:
        super().__init__(TextSource(stream.source.path, HUB, stream.column))
        self._stream, self.digest = stream, stream.digest
        self._choose_columns(list(stream.features), nested_fields(stream.schema))

    def __len__(self) -> int:
        return len(self._stream)

    def _values(self, index: int) -> Mapping[str, Any]:
        row = self._stream[index]
        return {name: plain_class(self._stream, name, row) for name in row}


def plain_class(stream: HubStream, column: str, row: Mapping[str, Any]) -> Any:
    """Return a value; of a column of classes the name of the class."""
    value, classes = row[column], stream.classes
    return class_name(classes[column], value) if column in classes else value


def _image_bytes(value: Mapping[str, Any] | None, name: str, source: HubSource) -> bytes:
    if value is None:
        raise InputError(f"{name!r} has no image.")
    if value["bytes"] is not None:
        return bytes(value["bytes"])
    _check_place(value["path"], source)
    import fsspec

    try:
        with fsspec.open(value["path"], "rb") as file:
            data: bytes = file.read()
    except Exception as error:  # each file system raises its own
        raise InputError(f"{value['path']!r} cannot be read: {cause(error)}.") from error
    return data


def _check_place(path: str, source: HubSource) -> None:
    """Raise InputError unless a file that a data set names is its own: in its folder or on the hub.

    A file in an archive is ``zip://FILE::ARCHIVE``.
    """
    base = path.rpartition("::")[2]
    if os.path.isdir(source.name):
        why = why_not_opened(base, source.name)
    else:
        why = "" if base.startswith(_HUB_FILES) else "is not on the hub"
    if why:
        raise InputError(
            f"{source.path!r} names the file {path!r}, which {why}.",
            "A data set may name its own files only. Copy the file into it.",
        )


def _open_split(source: HubSource) -> tuple[Any, Any]:
    """The stream of a split, not read yet, and the versions or times of its files."""
    import datasets

    with _reading(source):
        builder = datasets.load_dataset_builder(source.name, source.config)
        for name in (
            name for names in (builder.config.data_files or {}).values() for name in names
        ):
            _check_place(str(name), source)
        splits = builder.as_streaming_dataset()
    if source.split not in splits:
        near = did_you_mean(source.split, splits)
        raise InputError(
            f"{source.name!r} has no split {source.split!r}.",
            " ".join(filter(None, (near, f"It has {', '.join(splits)}."))),
        )
    files = (builder.config.data_files or {}).get(source.split)
    return splits[source.split], getattr(files, "origin_metadata", builder.hash)


@contextmanager
def _reading(source: HubSource) -> Iterator[None]:
    """Turn errors of the package into InputError, and show no progress of its own."""
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # its readers raise nearly any type
        raise InputError(
            f"The data set {source.name!r} cannot be read: {end_sentence(cause(error))}",
            "Check the name, or the path of the folder, and the connection.",
        ) from error
    finally:
        if shown:
            datasets.enable_progress_bars()
