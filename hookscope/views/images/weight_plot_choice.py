"""The tensors of a file of weights that are drawn, and the kind of plot that fits them."""

from __future__ import annotations

from collections.abc import Sequence

from hookscope.errors import RequestError
from hookscope.file_analysis.weights.weight_reader import WeightReader
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import shape_label
from hookscope.specs.choices import PLOT_KINDS
from hookscope.specs.tensor_key import WHOLE, choose_keys, modules_above
from hookscope.views.images.plot_choice import PlotChoice, TensorPart

FLOW, HIST, FILTERS, CURVE = "flow", "hist", "filters", "curve"
WEIGHT_KINDS = (FLOW, HIST)  # that can be asked for


def choose_weight_plot(
    reader: WeightReader, patterns: Sequence[str], kind: str | None = None
) -> PlotChoice:
    """Return what to draw of a set of weights."""
    if kind is not None and kind not in WEIGHT_KINDS:
        if kind not in PLOT_KINDS:
            near = did_you_mean(kind, WEIGHT_KINDS)
            raise RequestError(
                f"There is no plot of kind {kind!r}.",
                near or f"Choose among {', '.join(WEIGHT_KINDS)}.",
            )
        raise RequestError(
            f"--kind {kind} draws what a layer returned, and {reader.path} has weights.",
            f"Choose among {', '.join(WEIGHT_KINDS)}, or leave it out.",
        )
    names = list(reader.weights.tensors)
    matches = [(name, WHOLE) for name in names]
    if patterns:
        matches = choose_keys(patterns, names, reader.path, reader.listing, modules_above)
    parts = tuple(TensorPart(reader.record(name), index) for name, index in matches)
    if not parts:
        raise RequestError(f"{reader.path} contains no tensors.", "Name another file.")
    why = ""
    if kind is None:
        kind, why = _kind_for(reader, parts, bool(patterns))
    return PlotChoice(kind, why, parts)


def choose_filters(reader: WeightReader, layer: str) -> TensorPart:
    """Return the weight of a layer, or of the first convolution."""
    if layer in ("", "."):
        for least in (3, 2):
            for tensor in reader.weights.tensors.values():
                if len(tensor.shape) >= least and tensor.numel:
                    return TensorPart(reader.record(tensor.name), WHOLE)
        raise RequestError(
            f"{reader.path} has no tensor of two dimensions or more.", "Name another file."
        )
    names = list(reader.weights.tensors)
    matches = choose_keys([layer], names, reader.path, reader.listing, modules_above)
    suitable = [
        TensorPart(reader.record(name), index)
        for name, index in matches
        if len(shape := reader.shape(name, index)) >= 2 and 0 not in shape
    ]
    if not suitable:
        name, index = matches[0]
        raise RequestError(
            f"{name} ({shape_label(reader.shape(name, index))}) is empty or has fewer than two"
            " dimensions.",
            "Name another tensor, or draw it with"
            f" {cite_command('hookscope', 'plot', str(reader.path), name)}.",
        )
    if len(suitable) > 1:
        own = [part for part in suitable if part.record.key == f"{layer}.weight"]
        if not own:
            raise RequestError(
                f"{layer!r} matches {len(suitable)} tensors, and filters draws only one.",
                f"Name one, such as {suitable[0].record.key}.",
            )
        suitable = own
    return suitable[0]


def _kind_for(reader: WeightReader, parts: Sequence[TensorPart], named: bool) -> tuple[str, str]:
    """The kind of plot that fits the tensors, and the reason."""
    if not named:
        return FLOW, "no KEY is given, so the whole file is plotted"
    if len(parts) > 1:
        return HIST, f"the KEYs match {len(parts)} tensors"
    shape = reader.shape(parts[0].record.key, parts[0].index)
    if 0 in shape or not shape:
        return HIST, f"{parts[0].name} has no more than one entry"
    if len(shape) == 1:
        return CURVE, f"{parts[0].name} has one dimension"
    what = "a matrix" if len(shape) == 2 else "kernels"
    return FILTERS, f"{parts[0].name} is {what}"
