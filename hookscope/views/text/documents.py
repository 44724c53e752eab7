"""Every result as one document for JSON: a schema version first, then keys in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hookscope.results.gradient_flow import gradient_marks

if TYPE_CHECKING:  # listing models as JSON needs no torch
    from hookscope.results.module_tree import ModuleTree
    from hookscope.results.records import Recording
    from hookscope.results.trace_events import Trace
    from hookscope.specs.catalog import ModelInfo
    from hookscope.views.images.tensor_view import TensorView

SCHEMA = 1


def document(command: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the schema version and the command in front.

    Example:
        >>> document("config", {"values": []})
        {'schema': 1, 'command': 'config', 'values': []}
    """
    rest = {key: value for key, value in content.items() if key not in ("schema", "command")}
    return {"schema": SCHEMA, "command": command, **rest}


def tree_document(tree: ModuleTree) -> dict[str, Any]:
    """Return ``model``, ``total`` (the whole model) and ``modules``, each with all its fields."""
    modules = [asdict(node) for node in tree.nodes]
    return document("tree", {"model": tree.model, "total": asdict(tree.total), "modules": modules})


def capture_document(capture: Recording, file: str | None = None) -> dict[str, Any]:
    """Return a capture or gradients: the metadata's keys, then file, records, absent, coverage.

    Args:
        capture: what was recorded.
        file: where it was written, None where it was not.

    Records of gradients also bear ``ratio`` (gradient norm over weight norm, null but for
    parameters) and ``mark`` (``vanishing``, ``exploding`` or null).
    """
    command = str(capture.metadata.get("command", "capture"))
    records = [record.to_json() for record in capture.records]
    if any(record.kind.endswith("grad") for record in capture.records):
        marks = gradient_marks(capture.records)
        for data, record in zip(records, capture.records, strict=True):
            data.update(ratio=record.ratio, mark=marks.get(record.key))
    coverage = {
        "matched": capture.coverage.matched,
        "fired": [asdict(executed) for executed in capture.coverage.executed],
        "silent": [asdict(not_executed) for not_executed in capture.coverage.not_executed],
    }
    results = {
        "top": capture.metadata.get("top", []),
        "file": file,
        "records": records,
        "absent": [asdict(absent) for absent in capture.absent],
        "coverage": coverage,
    }
    return document(command, {**capture.metadata, **results})


def show_document(
    capture: Recording, file: str, looks: Sequence[TensorView] | None = None
) -> dict[str, Any]:
    """Return what a file holds: ``file``, then ``recording`` or, where some are named, ``tensors``.

    ``recording`` is the document that the command printed which made the file. Each of ``tensors``
    has its key, slice, shape, dtype, statistics, histogram, largest entries, and the places of the
    first NaN and of the first infinity. Whichever is not asked for is null.
    """
    tensors = [
        {
            "key": look.record.key,
            "slice": look.part,
            "shape": look.shape,
            "dtype": look.record.dtype,
            "stats": look.stats.to_json(),
            "histogram": [asdict(one) for one in look.histogram],
            "largest": [asdict(entry) for entry in look.largest],
            "first_nan": look.first_nan,
            "first_inf": look.first_inf,
        }
        for look in looks or ()
    ]
    recording = None if looks else capture_document(capture, file)
    return document("show", {"file": file, "recording": recording, "tensors": tensors or None})


def trace_document(trace: Trace) -> dict[str, Any]:
    """Return a trace: the metadata's keys, then milliseconds of each pass, events, coverage."""
    coverage = {
        "matched": trace.coverage.matched,
        "fired": [asdict(executed) for executed in trace.coverage.executed],
        "silent": [asdict(not_executed) for not_executed in trace.coverage.not_executed],
    }
    results = {
        "milliseconds": {name: trace.total(name) for name in ("forward", "backward")},
        "events": [asdict(event) for event in trace.events],
        "coverage": coverage,
    }
    return document("trace", {**trace.metadata, **results})


def models_document(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Return the listed models, each with all its fields."""
    return document("models", {"models": [asdict(model) for model in models]})
