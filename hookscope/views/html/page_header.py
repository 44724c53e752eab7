"""The summary of one file on a page, in the sentences of the terminal; its command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.shell_words import join_words
from hookscope.files.strict_json import parse_number
from hookscope.files.words import bytes_text, count_text, plural, shape_text
from hookscope.results.health import gradient_marks
from hookscope.results.metadata import InputMetadata, has_random_weights
from hookscope.results.records import Record, Recording
from hookscope.specs.checks import EXPLODING, VANISHING
from hookscope.specs.request import ONLY_PYTHON
from hookscope.specs.settings import spell_option
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.capture import attention_lines, effect_lines, verified_lines
from hookscope.views.grads import loss_lines
from hookscope.views.html.page import PageFigure, Summary
from hookscope.views.step import optimizer_lines
from hookscope.views.text.shared_parts import (
    GRADIENT_LEGEND,
    coverage_lines,
    group_names,
    label_cell,
)
from hookscope.views.text.table import Cell
from hookscope.views.text.text_table import PIPE, TextOptions
from hookscope.views.text.tokens import generated_lines, padding_lines, prompt_lines, token_cell

_SHORTENED = TextOptions(width=1 << 20)  # a long text is shortened as on a terminal
MAX_NAMES = 5  # names in a sentence; the table has all
RECORDING_COMMANDS = ("capture", "grads", "step")
_SEVERAL = {"layers", "types", "edits", "grad_edits", "hooks", "hook_kind"}  # one flag for each
_ARTICLES = {EXPLODING: f"an {EXPLODING}", VANISHING: f"a {VANISHING}"}
_OF_LENGTHS = {"shape", "size"}  # 1x3x8x8


def file_summary(capture: CaptureFile, letter: str, figures: tuple[PageFigure, ...]) -> Summary:
    """Return the summary of a file."""
    metadata = capture.metadata
    warnings = tuple(_warnings(capture))
    return Summary(
        letter,
        visible(os.fspath(capture.path)),
        visible(original_command(metadata)),
        _verdict(capture, warnings),
        warnings,
        tuple((name, visible(text)) for name, text in _facts(capture)),
        tuple(_sentences(capture)),
        has_random_weights(metadata),
        tuple(titled for titled in _most_probable(metadata) if titled[1]),
        figures,
    )


def gradient_records(records: Iterable[Record]) -> list[Record]:
    """Return the records of gradients; only these can vanish or explode."""
    return [record for record in records if record.kind.endswith(".grad")]


def _verdict(capture: Recording, warnings: tuple[str, ...]) -> str:
    if warnings:
        return f"{plural(len(warnings), 'warning')}:"
    parts = ["every value is finite"] if capture.records else ["nothing was recorded"]
    if gradient_records(capture.records):
        parts.append("no gradient vanishes or explodes")
    if capture.coverage.executed:
        parts.append("every selected layer ran")
    return f"No warnings: {', '.join(parts)}."


def _warnings(capture: Recording) -> Iterable[str]:
    if failed := capture.metadata.get("failed"):
        yield f"A hook failed; the file has what was recorded before that: {visible(failed)}"
    for word, field in (("NaN", "nan"), ("infinite values", "inf")):
        keys = [r.key for r in capture.records if getattr(r.stats, field)]
        if keys:
            yield f"{_tensors(keys)} with {word}: {_first_names(keys)}."
    marks = gradient_marks(gradient_records(capture.records))
    for word in (EXPLODING, VANISHING):
        keys = [key for key, mark in marks.items() if mark == word]
        if keys:
            yield f"{_tensors(keys)} with {_ARTICLES[word]} gradient: {_first_names(keys)}."
    absent = group_names((x.reason, f"{x.module}/{x.what}") for x in capture.absent)
    for reason, keys in absent.items():
        yield f"Does not exist: {_first_names(keys)} ({visible(reason)})."
    not_executed = group_names((x.reason, x.module) for x in capture.coverage.not_executed)
    for reason, modules in not_executed.items():
        yield f"Never ran: {_first_names(modules)} ({visible(reason)})."


def _sentences(capture: Recording) -> Iterable[str]:
    lines: list[Text] = [
        *prompt_lines(capture.metadata, _SHORTENED),
        *generated_lines(capture.metadata, _SHORTENED),
        *padding_lines(capture, PIPE),
        *loss_lines(capture.metadata, PIPE),
        *effect_lines(capture, PIPE),
        *verified_lines(capture, PIPE),
        *attention_lines(capture, PIPE),
        *optimizer_lines(capture.metadata, PIPE),
    ]
    yield from (line.plain for line in lines)
    for name in ("edits", "grad_edits"):
        for entry in capture.metadata.get(name, []):
            yield f"Edited {visible(str(entry['edit']))}: {_tensors(entry['changed'])} changed."
    emitted = sum(record.kind == "emitted" for record in capture.records)
    if emitted:
        yield f"{plural(emitted, 'tensor')} emitted by hooks."
    if gradient_marks(gradient_records(capture.records)):
        yield GRADIENT_LEGEND
    # Modules that never ran are among the warnings.
    if capture.has_coverage:
        lines = coverage_lines(capture.coverage, PIPE)
        yield from (line.plain for line in lines[: 1 + bool(capture.coverage.stopped_after)])


def _most_probable(
    metadata: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """The classes of each image and the next tokens after each row, each list with its title."""
    images = metadata.get("top") or []
    inputs = [str(entry.get("spec", "")) for entry in metadata.get("inputs", [])]
    for n, entries in enumerate(images):
        image = inputs[n] if len(inputs) == len(images) else f"image {n + 1}"
        yield f"Most probable classes of {visible(image)}", _shares(entries, label_cell)
    for n, entries in enumerate(metadata.get("next_tokens") or [], start=1):
        yield f"Most probable next tokens after row {n}", _shares(entries, token_cell)


def _shares(entries: Sequence[Any], name: Callable[[Any], Cell]) -> tuple[tuple[str, str], ...]:
    pairs = ((visible(name(x).text), parse_number(x["probability"])) for x in entries)
    return tuple((text, "-" if share is None else f"{share:.1%}") for text, share in pairs)


def _facts(capture: CaptureFile) -> Iterable[tuple[str, str]]:
    metadata = capture.metadata
    model = metadata.get("model", {})
    yield "model", str(model.get("spec", "unknown"))
    yield "source", str(model.get("source", ""))
    yield "weights", f"{model.get('weights') or ''} {_hash('blake3', model.get('blake3'))}".strip()
    for entry in metadata.get("inputs", []):
        yield "input", _input(entry)
    for entry in metadata.get("arguments", []):
        shape = shape_text(entry.get("shape", ()))
        yield f"argument {entry.get('name', '')}", f"{shape} {entry.get('dtype', '')}"
    for name in ("seed", "device", "dtype"):
        yield name, str(metadata.get(name) if metadata.get(name) is not None else "")
    yield "mode", "training" if metadata.get("training") else "evaluation"
    yield "recorded", plural(len(capture.records), "tensor")
    yield "file", bytes_text(capture.nbytes)
    for name, version in metadata.get("versions", {}).items():
        yield name, str(version)


def _input(entry: InputMetadata) -> str:
    layout = f"{entry.get('shape', '')} {entry.get('dtype', '')}"
    digest = _hash("sha256", entry.get("sha256"))
    return f"{entry.get('spec', 'unknown')}, {layout} {digest}".strip()


def _hash(kind: str, digest: str | None) -> str:
    return f"({kind} {digest})" if digest else ""


def _tensors(keys: list[str]) -> str:
    return plural(len(keys), "tensor")


def _first_names(names: list[str]) -> str:
    more = f" and {count_text(len(names) - MAX_NAMES)} more" if len(names) > MAX_NAMES else ""
    return ", ".join(map(visible, names[:MAX_NAMES])) + more


def original_command(metadata: Mapping[str, Any]) -> str:
    """Return the command line that made a file, quoted for the shell; empty if Python made it."""
    command, model = metadata.get("command"), metadata.get("model", {})
    inputs, options = metadata.get("inputs", []), metadata.get("options", {})
    values = [entry for entry in inputs if entry.get("sha256")]  # noise and examples have no hash
    by_python = (
        command not in RECORDING_COMMANDS
        or "spec" not in model
        or model.get("source") == "live"
        or any(entry.get("spec", "tensor") == "tensor" for entry in values)
        or _holds_objects(options)
    )
    if by_python:
        return ""
    words = ["hookscope", str(command), str(model["spec"])]
    for entry in values:
        if not entry.get("part") or entry["spec"] != words[-1]:  # an input may be several tensors
            words += ["--input", str(entry["spec"])]
    for name, value in options.items():
        words += _option_words(name, value)
    return join_words(words)


def _option_words(name: str, value: Any) -> Iterator[str]:
    """The words of an option on the command line."""
    flag = spell_option(name)
    if isinstance(value, bool):
        yield flag if value else flag.replace("--", "--no-", 1)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (flag, f"{key}={item}")
    elif name in _SEVERAL:
        for item in value if isinstance(value, list) else [value]:
            yield from (flag, str(item))
    elif isinstance(value, list):
        yield from (flag, ("x" if name in _OF_LENGTHS else ",").join(map(str, value)))
    else:
        yield from (flag, str(value))


def _holds_objects(value: Any) -> bool:
    if isinstance(value, Mapping):
        return ONLY_PYTHON in value or any(map(_holds_objects, value.values()))
    return isinstance(value, list) and any(map(_holds_objects, value))
