"""The tensors of a file that are drawn, and the kind of plot that fits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.file_analysis.weight_reader import WeightReader
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import plural, shape_label
from hookscope.results.dimensions import find_channel_dim, layout
from hookscope.results.located_positions import choose_parts
from hookscope.results.records import Record
from hookscope.specs.choices import PLOT_KINDS, SCATTER
from hookscope.specs.patterns import ROOT
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import (
    ATTENTION,
    INPUT,
    PARAM_GRAD,
    PARAM_UPDATE,
    WHOLE,
    Index,
    choose_keys,
    modules_above,
    slice_text,
)
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.figures.canvas import MAX_PANELS

_OF_PARAMETERS = (PARAM_GRAD, PARAM_UPDATE)
_NEEDED = {
    "maps": "values or gradients of a layer",
    "heat": "values or gradients of a layer",
    ATTENTION: "attention weights, which capture --attention records",
    SCATTER: "the rows of a features folder, which extract writes",
}

FLOW, HIST, FILTERS, CURVE = "flow", "hist", "filters", "curve"
WEIGHT_KINDS = (FLOW, HIST)  # that can be asked for


@dataclass(frozen=True)
class TensorPart:
    """A tensor, or a part of it."""

    record: Record
    index: Index

    @property
    def name(self) -> str:
        """The key, followed by the slice."""
        return f"{self.record.key}{slice_text(self.index)}"


@dataclass(frozen=True)
class PlotChoice:
    """The kind of plot, why it was chosen, its tensors, and what is left out and why."""

    kind: str
    why: str
    parts: tuple[TensorPart, ...]
    left_out: str = ""


def choose_plot(capture: CaptureFile, patterns: Sequence[str], options: PlotOptions) -> PlotChoice:
    """Return what to draw; without patterns, what the file was recorded for."""
    kind = options.kind
    _check_kind(kind, PLOT_KINDS)
    keys = [record.key for record in capture.records]
    matches = [(key, WHOLE) for key in keys]
    if patterns:
        matches = choose_parts(patterns, capture, capture.path, capture.listing)
    parts = tuple(TensorPart(capture.record(key), index) for key, index in matches)
    if not parts:
        raise RequestError(
            f"{capture.path} contains no tensors.", "Record it again with other layers."
        )
    why = ""
    if kind is None:
        if not patterns:
            parts = _only_layer(parts)
        kind, why = _kind_for(capture, patterns, parts)
    fitting = tuple(part for part in parts if _fits(kind, part))
    if not fitting:
        named = ", ".join(patterns) or str(capture.path)
        raise RequestError(
            f"--kind {kind} draws {_NEEDED[kind]}, and {named} has none.", capture.listing
        )
    if kind == "maps":
        _check_one_call(fitting, capture.path)
    if patterns:
        left = [part.name for part in parts if part not in fitting]
        left_out = f"{', '.join(left)}, which --kind {kind} does not draw" if left else ""
        return PlotChoice(kind, why, fitting, left_out)
    room = _room(capture, fitting, options) if kind == ATTENTION else len(fitting)
    if room < len(fitting):
        rest = f"{plural(len(fitting) - room, 'layer')} from {fitting[room].record.module} on"
        left_out = f"{rest}, for which the figure has no room; name some as KEYs"
        return PlotChoice(kind, why, fitting[:room], left_out)
    return PlotChoice(kind, why, fitting)


def _only_layer(parts: tuple[TensorPart, ...]) -> tuple[TensorPart, ...]:
    """Return the tensors of the only layer; all if there are several.

    The gradients at the inputs of the model are recorded beside those of any layer.
    """
    rest = tuple(
        part
        for part in parts
        if not (part.record.module == ROOT and part.record.kind.startswith(INPUT))
    )
    return rest if len({part.record.module for part in rest}) == 1 else parts


def _room(capture: CaptureFile, parts: Sequence[TensorPart], options: PlotOptions) -> int:
    """Return for how many of the first tensors a figure has room, with a panel for each head."""
    panels = 0
    for number, part in enumerate(parts):
        *_, heads, _, _ = (1, *part.record.shape)
        panels += len(options.channels or ()) or min(heads, options.count)
        if panels > MAX_PANELS:
            return max(number, 1)
    return len(parts)


def _check_kind(kind: str | None, possible: Sequence[str]) -> None:
    if kind is not None and kind not in PLOT_KINDS:
        near = did_you_mean(kind, possible)
        hint = near or f"Choose among {', '.join(possible)}."
        raise RequestError(f"There is no plot of kind {kind!r}.", hint)


def _fits(kind: str, part: TensorPart) -> bool:
    of = part.record.kind
    if kind == SCATTER:
        return False
    if kind == ATTENTION:
        return of.startswith(ATTENTION)
    return kind not in ("maps", "heat") or not of.startswith((ATTENTION, *_OF_PARAMETERS))


def _kind_for(
    capture: CaptureFile, patterns: Sequence[str], parts: Sequence[TensorPart]
) -> tuple[str, str]:
    """The kind of plot that fits the tensors, and the reason."""
    if not patterns and any(_fits(ATTENTION, part) for part in parts):
        return ATTENTION, "no KEY is given, and the file has attention weights"
    if not patterns and len({part.record.module for part in parts}) > 1:
        return "flow", "no KEY is given, so the whole file is plotted"
    # The name of a layer also selects the gradients of its parameters: the others decide.
    parts = [part for part in parts if part.record.kind not in _OF_PARAMETERS] or parts
    what = parts[0].name if len(parts) == 1 else f"each of {len(parts)} tensors"
    weights = [part for part in parts if _fits(ATTENTION, part)]
    if {part.record.module for part in weights} == {part.record.module for part in parts}:
        named = weights[0].name if len(weights) == 1 else f"each of {len(weights)} tensors"
        return ATTENTION, f"{named} contains attention weights"
    if all(_fits("maps", part) for part in parts):
        shapes = [capture.shape(part.record.key, part.index) for part in parts]
        if _one_call(parts) and all(
            _are_maps(capture, *pair) for pair in zip(parts, shapes, strict=True)
        ):
            return "maps", f"{what} has channels of two dimensions"
        if all(map(_are_tokens, parts, shapes)):
            return "heat", f"{what} has channels at several positions"
    return "hist", f"{what} fits no other kind, so its distribution is plotted"


def _are_maps(capture: CaptureFile, part: TensorPart, shape: tuple[int, ...]) -> bool:
    record = part.record
    if 0 in shape:
        return False
    if part.index != WHOLE:  # with a slice, the first of three dimensions has the channels
        return 2 <= len(shape) <= 4 and max(shape[-2:]) > 1
    letters = layout(record.type, record.kind, shape, capture.image)
    sides = [n for letter, n in zip(letters, shape, strict=bool(letters)) if letter == "S"]
    return "C" in letters and max(sides) > 1


def _are_tokens(part: TensorPart, shape: tuple[int, ...]) -> bool:
    if part.index != WHOLE or len(shape) != 3:
        return False
    along = find_channel_dim(part.record.type, part.record.kind, shape, None)
    return along > 0 and shape[3 - along] > 1


def _one_call(parts: Sequence[TensorPart]) -> bool:
    return len({(part.record.module, part.record.call) for part in parts}) == 1


def _check_one_call(parts: Sequence[TensorPart], path: object) -> None:
    if not _one_call(parts):
        raise RequestError(
            f"Maps are drawn of one call of one layer, and these are {len(parts)} tensors of"
            f" several: {parts[0].name}, {parts[-1].name}.",
            "Name one layer, or take --kind hist, heat or flow.",
        )


def choose_weight_plot(
    reader: WeightReader, patterns: Sequence[str], kind: str | None = None
) -> PlotChoice:
    """Return what to draw of a set of weights."""
    _check_kind(kind, WEIGHT_KINDS)
    if kind is not None and kind not in WEIGHT_KINDS:
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
        kind, why = _weight_kind(reader, parts, bool(patterns))
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
    own = [part for part in suitable if part.record.key == f"{layer}.weight"]
    if len(suitable) > 1 and not own:
        raise RequestError(
            f"{layer!r} matches {len(suitable)} tensors, and filters draws only one.",
            f"Name one, such as {suitable[0].record.key}.",
        )
    return (own or suitable)[0]


def _weight_kind(reader: WeightReader, parts: Sequence[TensorPart], named: bool) -> tuple[str, str]:
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
