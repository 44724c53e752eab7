"""What a page tells of one file as a whole, in the words in which the terminal tells it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from hookscope.results.gradient_flow import EXPLODING, VANISHING, gradient_marks
from hookscope.results.reader import OpenCapture
from hookscope.results.records import Record, Recording
from hookscope.views.html.command import command_of
from hookscope.views.html.model import Figure, Side
from hookscope.views.text.capture import attention_lines, verified_lines
from hookscope.views.text.coverage import coverage_lines
from hookscope.views.text.edits import effect_lines
from hookscope.views.text.grads import loss_lines
from hookscope.views.text.marks import LEGEND
from hookscope.views.text.step import optimizer_lines
from hookscope.views.text.text import count, plural, shape_text, size, visible

NAMED = 5  # names that a sentence gives; the table has all


def side_of(capture: OpenCapture, letter: str, pictures: tuple[Figure, ...]) -> Side:
    """Return what is told of a file before its layers."""
    metadata = capture.metadata
    warnings = tuple(_warnings(capture))
    return Side(
        letter,
        visible(os.fspath(capture.path)),
        visible(command_of(metadata)),
        _verdict(capture, warnings),
        warnings,
        tuple(_told(capture)),
        tuple(_top(metadata)),
        tuple((name, visible(text)) for name, text in _facts(capture)),
        pictures,
    )


def gradients_of(records: Iterable[Record]) -> list[Record]:
    """Return the records that are gradients, which alone can vanish or explode."""
    return [record for record in records if record.kind.endswith(".grad")]


def _verdict(capture: Recording, warnings: tuple[str, ...]) -> str:
    if warnings:
        return f"{plural(len(warnings), 'warning')} below."
    parts = ["every entry is finite"] if capture.records else ["nothing was recorded"]
    if gradients_of(capture.records):
        parts.append("no gradient vanishes or explodes")
    if capture.coverage.fired:
        parts.append("every layer asked for ran")
    return f"Nothing stands out: {', '.join(parts)}."


def _warnings(capture: Recording) -> Iterable[str]:
    if failed := capture.metadata.get("failed"):
        yield f"A hook failed, and this holds what had been recorded before: {visible(failed)}"
    for word, field in (("NaN", "nan"), ("infinite entries", "inf")):
        found = [r.key for r in capture.records if getattr(r.stats, field)]
        if found:
            yield f"{_tensors(found)} with {word}: {_named(found)}."
    marks = gradient_marks(gradients_of(capture.records))
    for word in (EXPLODING, VANISHING):
        found = [key for key, mark in marks.items() if mark == word]
        if found:
            yield f"{_tensors(found)} with a gradient that is {word}: {_named(found)}."
    reasons: dict[str, list[str]] = {}
    for absent in capture.absent:
        reasons.setdefault(absent.reason, []).append(f"{absent.module}/{absent.what}")
    for reason, keys in reasons.items():
        yield f"Does not exist: {_named(keys)} ({visible(reason)})."
    causes: dict[str, list[str]] = {}
    for silent in capture.coverage.silent:
        causes.setdefault(silent.reason, []).append(silent.module)
    for reason, modules in causes.items():
        yield f"Never ran: {_named(modules)} ({visible(reason)})."


def _told(capture: Recording) -> Iterable[str]:
    lines: list[Text] = [
        *loss_lines(capture.metadata, None),
        *effect_lines(capture, None),
        *verified_lines(capture, None),
        *attention_lines(capture, None),
        *optimizer_lines(capture.metadata, None),
    ]
    yield from (line.plain for line in lines)
    for name in ("edits", "grad_edits"):
        for entry in capture.metadata.get(name, []):
            yield f"Edited {visible(str(entry['edit']))}: {_tensors(entry['changed'])} changed."
    emitted = sum(record.kind == "emitted" for record in capture.records)
    if emitted:
        yield f"{plural(emitted, 'tensor')} emitted by hooks."
    if gradient_marks(gradients_of(capture.records)):
        yield LEGEND
    # What never ran is among the warnings.
    yield coverage_lines(capture.coverage, None)[0].plain


def _top(metadata: Mapping[str, Any]) -> Iterable[tuple[str, tuple[tuple[str, str], ...]]]:
    images = metadata.get("top") or []
    words = [str(entry.get("word", "")) for entry in metadata.get("inputs", [])]
    for n, entries in enumerate(images):
        word = words[n] if len(words) == len(images) else f"image {n + 1}"
        rows = [
            (
                visible(str(e.get("label") or f"class {e['index']}")),
                f"{float(e['probability']):.1%}",
            )
            for e in entries
        ]
        if rows:
            yield visible(word), tuple(rows)


def _facts(capture: OpenCapture) -> Iterable[tuple[str, str]]:
    metadata = capture.metadata
    model = metadata.get("model", {})
    yield "model", str(model.get("word", "unknown"))
    yield "source", str(model.get("source", ""))
    yield "weights", f"{model.get('weights') or ''} {_hash(model, 'blake3')}".strip()
    for entry in metadata.get("inputs", []):
        yield "input", _input(entry)
    for entry in metadata.get("arguments", []):
        shape = shape_text(entry.get("shape", ()))
        yield f"argument {entry.get('name', '')}", f"{shape} {entry.get('dtype', '')}"
    for name in ("seed", "device", "dtype"):
        yield name, str(metadata.get(name) if metadata.get(name) is not None else "")
    yield "mode", "training" if metadata.get("training") else "evaluation"
    yield "recorded", plural(len(capture.records), "tensor")
    yield "file", size(os.path.getsize(capture.path))
    for name, version in metadata.get("versions", {}).items():
        yield name, str(version)


def _input(entry: Mapping[str, Any]) -> str:
    looks = f"{entry.get('shape', '')} {entry.get('dtype', '')}"
    return f"{entry.get('word', 'unknown')}, {looks} {_hash(entry, 'sha256')}".strip()


def _hash(entry: Mapping[str, Any], kind: str) -> str:
    return f"({kind} {entry[kind]})" if entry.get(kind) else ""


def _tensors(found: list[str]) -> str:
    return plural(len(found), "tensor")


def _named(names: list[str]) -> str:
    more = f" and {count(len(names) - NAMED)} more" if len(names) > NAMED else ""
    return ", ".join(map(visible, names[:NAMED])) + more
