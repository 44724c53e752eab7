"""A model that is compared with a fingerprint, with the options that its file says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from hookscope.errors import HookscopeError, ResultsFileError
from hookscope.files.strict_json import type_error
from hookscope.specs.diff_request import INPUT_OPTIONS, DumpRequest
from hookscope.specs.names_in_files import refused_name
from hookscope.specs.settings import described_fields, spell_option
from hookscope.specs.value_readers import CommandLineText

_WRITE_AGAIN = "Write the file again, or give the options yourself."


class FileOptions(TypedDict, total=False):
    """The options that ``diff`` takes from a fingerprint. No file grants ``trust``."""

    weights: str
    rename: dict[str, str]
    model_args: dict[str, Any]
    method: str | None
    attn: str | None
    onnx_optimize: str | None
    adapter: str | None
    dtype: str | None
    device: str | None
    input: list[str]
    shape: list[int]
    preprocess: str | None
    size: int | list[int]
    mean: list[float]
    std: list[float]
    tokenizer: str | None
    chat: bool
    partial: bool
    seed: int
    train: bool
    layers: list[str]
    strict: bool


FINGERPRINT_OPTIONS = (*FileOptions.__annotations__, "trust")


@dataclass(frozen=True)
class FingerprintRequest(DumpRequest):
    """How a model, A, is compared with a fingerprint, B."""

    def with_options(self, known: Mapping[str, Any]) -> FingerprintRequest:
        """Return the request with the options of the fingerprint that are not given.

        Those of the input are one: a given input or shape replaces all of them.

        Raises:
            ResultsFileError: an option is damaged, or names what a file may not name.
        """
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        unset = {
            name
            for name, (value, default) in values.items()
            if value is default or (isinstance(value, str | int | tuple) and value == default)
        }
        names = [name for name in FileOptions.__annotations__ if name in unset and name in known]
        if self.has_input:
            names = [name for name in names if name not in INPUT_OPTIONS]
        file = os.fspath(self.b)
        return replace(self, **dict(_read(file, {name: known[name] for name in names})))


def _read(file: str, options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a fingerprint as ``diff`` takes them."""
    if wrong := type_error(options, FileOptions, "options"):
        raise ResultsFileError(f"{file} is damaged: {wrong}.", _WRITE_AGAIN)
    if "model_args" in options:
        options["model_args"] = {k: _number(v) for k, v in options["model_args"].items()}
    described = described_fields(FingerprintRequest)
    annotations = {each.name: str(each.type) for each in fields(FingerprintRequest)}
    for name, value in options.items():
        option, named = spell_option(name).removeprefix("--"), value
        if name == "model_args":  # numbers name nothing
            named = [f"{key}={text}" for key, text in value.items() if _may_name(text)]
        refused = refused_name(option, named, os.path.dirname(file) or ".") if named else None
        if refused:
            raise ResultsFileError(
                refused.sentence(file, "a file of results"),
                f"If you trust it, give it yourself: {refused.given}",
            )
        try:
            read = described[name].read(annotations[name], value)
        except (ValueError, HookscopeError) as error:
            raise ResultsFileError(f"{file} is damaged: {name}: {error}", _WRITE_AGAIN) from error
        yield name, read


def _number(value: Any) -> Any:
    """A number, of which the command line gave the text: its parameter has the type."""
    if isinstance(value, str):
        try:
            plain = not _may_name(json.loads(value.lower()))
        except (ValueError, RecursionError):
            plain = value.lower() == "none"
        return CommandLineText(value) if plain else value
    return value


def _may_name(value: Any) -> bool:
    """Whether a value may be the name of something: a text, or what has one in it."""
    if isinstance(value, list):
        return any(map(_may_name, value))
    return not (value is None or isinstance(value, bool | int | float | CommandLineText))
