"""Results as JSON documents: the schema version first, then keys in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hookscope.results.gradient_flow import gradient_marks

if TYPE_CHECKING:
    from hookscope.errors import ForwardError
    from hookscope.file_analysis.runs.key_curves import KeyCurves
    from hookscope.file_analysis.runs.run_summary import RunSummary
    from hookscope.results.module_tree import ModuleTree
    from hookscope.results.records import Recording
    from hookscope.results.trace_events import Trace
    from hookscope.specs.catalog import ModelInfo
    from hookscope.stores.features.features import Features
    from hookscope.stores.runs.run_list import RunList
    from hookscope.stores.weights.weight_set import WeightSet
    from hookscope.views.images.tensor_view import TensorEntry, TensorSummary, TensorView

SCHEMA = 1


def document(command: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the schema version and the command before its keys.

    Example:
        >>> document("config", {"values": []})
        {'schema': 1, 'command': 'config', 'values': []}
    """
    rest = {key: value for key, value in content.items() if key not in ("schema", "command")}
    return {"schema": SCHEMA, "command": command, **rest}


def tree_document(tree: ModuleTree) -> dict[str, Any]:
    """Return a tree: ``model``, ``total`` (of the whole model) and ``modules``, with all fields.

    ``absent`` has the modules that an exporter removed from the file, if there are any.
    """
    modules = [asdict(node) for node in tree.nodes]
    parts = {"model": tree.model, "total": asdict(tree.total), "modules": modules}
    if tree.absent:
        parts["absent"] = [asdict(module) for module in tree.absent]
    return document("tree", parts)


def capture_document(capture: Recording, file: str | None = None) -> dict[str, Any]:
    """Return a recording: the metadata's keys, then file, records, absent, coverage.

    If there are gradients, each record also has ``ratio`` (gradient norm over weight norm, null
    except for parameters) and ``mark`` (``vanishing``, ``exploding`` or null).

    Args:
        capture: the recording.
        file: where it was written; None if it was not.
    """
    command = str(capture.metadata.get("command", "capture"))
    records = [record.to_json() for record in capture.records]
    if any(record.kind.endswith("grad") for record in capture.records):
        marks = gradient_marks(capture.records)
        for data, record in zip(records, capture.records, strict=True):
            data.update(ratio=record.ratio, mark=marks.get(record.key))
    results = {
        "top": capture.metadata.get("top", []),
        "file": file,
        "records": records,
        "absent": [asdict(absent) for absent in capture.absent],
        "coverage": {"matched": capture.coverage.matched, **capture.coverage.to_json()},
    }
    return document(command, {**capture.metadata, **results})


def show_document(
    capture: Recording, file: str, views: Sequence[TensorView] = ()
) -> dict[str, Any]:
    """Return what a file holds: ``file``, then ``recording`` or the ``tensors`` of some views.

    ``recording`` is the document of the command that made the file. Each of ``tensors`` has its
    key, slice, shape, dtype, statistics, histogram, largest entries, and the indices of the first
    NaN and of the first infinity. One of the two is null.
    """
    tensors = list(map(_tensor_document, views))
    recording = None if views else capture_document(capture, file)
    return document("show", {"file": file, "recording": recording, "tensors": tensors or None})


def weights_document(weights: WeightSet, summaries: Sequence[TensorSummary] = ()) -> dict[str, Any]:
    """Return a set of weights: ``file``, ``weights``, then the ``tensors`` of some summaries.

    ``weights`` has the format, the totals and the metadata, and without summaries also all tensors
    by their headers. Each of ``tensors`` has its key, slice, shape, dtype and statistics; with
    values (a ``TensorView``) also the histogram and the rest.
    """
    about: dict[str, Any] = {
        "kind": weights.kind,
        "part": weights.part,
        "parameters": weights.parameters,
        "bytes": weights.nbytes,
        "metadata": dict(weights.metadata),
        "notes": list(weights.notes),
    }
    if not summaries:
        about["tensors"] = [asdict(tensor) for tensor in weights.tensors.values()]
    single = {"file": weights.path, "recording": None, "weights": about}
    tensors = list(map(_tensor_document, summaries))
    return document("show", {**single, "tensors": tensors or None})


def _tensor_document(summary: TensorSummary) -> dict[str, Any]:
    from hookscope.views.images.tensor_view import TensorView  # numpy, which few documents need

    described = {
        "key": summary.record.key,
        "slice": summary.part,
        "shape": summary.shape,
        "dtype": summary.record.dtype,
        "stats": summary.stats.to_json(),
    }
    if not isinstance(summary, TensorView):
        return described
    return described | {
        "histogram": [asdict(bin) for bin in summary.histogram],
        "largest": [_entry_document(entry) for entry in summary.largest],
        "first_nan": summary.first_nan,
        "first_inf": summary.first_inf,
        **({"padding": summary.padding} if summary.padding else {}),
    }


def _entry_document(entry: TensorEntry) -> dict[str, Any]:
    tokens = {"tokens": entry.tokens} if entry.tokens else {}
    return {"index": entry.index, "value": entry.value, **tokens}


def trace_document(trace: Trace) -> dict[str, Any]:
    """Return a trace: the metadata's keys, then milliseconds of each pass, events, coverage."""
    results = {
        "milliseconds": {name: trace.total(name) for name in ("forward", "backward")},
        "events": [asdict(event) for event in trace.events],
        "coverage": {"matched": trace.coverage.matched, **trace.coverage.to_json()},
    }
    return document("trace", {**trace.metadata, **results})


def models_document(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Return the listed models, each with all its fields."""
    return document("models", {"models": [asdict(model) for model in models]})


def features_document(features: Features) -> dict[str, Any]:
    """Return a features folder: what describes a single file as null, then the manifest."""
    single = {"file": features.folder, "recording": None, "tensors": None}
    return document("show", {**single, "features": features.manifest})


def run_document(summary: RunSummary, curves: Sequence[KeyCurves] = ()) -> dict[str, Any]:
    """Return a run: what describes a file of tensors as null, then ``run`` or some ``curves``.

    ``run`` has the content of ``run.json``, the number of sampled steps, the first and last loss,
    the last values of each layer, and the events. Each of ``curves`` has its model and key, and for
    each measure its steps and values. One of the two is null.
    """
    single = {"file": str(summary.run.folder), "recording": None, "tensors": None}
    run = None if curves else summary.to_json()
    return document(
        "show", {**single, "run": run, "curves": [each.to_json() for each in curves] or None}
    )


def run_list_document(result: RunList) -> dict[str, Any]:
    """Return the runs of a folder: what describes a file of tensors as null, then ``runs``."""
    single = {"file": str(result.folder), "recording": None, "tensors": None}
    return document("show", {**single, **result.to_json()})


def failure_document(command: str, error: ForwardError) -> dict[str, Any]:
    """Return a failed pass: ``failed`` (the sentence), ``hint``, and ``failure`` with all details.

    The details are ``failed`` (the call), ``ran`` (the calls before it), ``complete`` (whether
    these are of all layers), ``variables``, ``expected``, ``fixes``, ``file``, ``line``,
    ``function`` and ``source``. With a tree the document has ``model``, ``total`` and ``modules``
    as well.
    """
    content = {"failed": error.message, "hint": error.hint, "failure": asdict(error.failure)}
    tree = tree_document(error.tree) if error.tree is not None else {}
    return document(command, {**tree, **content})
