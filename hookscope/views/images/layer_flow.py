"""Values, gradients and updates layer by layer: one number for each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hookscope.errors import RequestError
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT, layer_text
from hookscope.specs.record_kinds import (
    ATTENTION,
    INPUT,
    OP,
    OUTPUT,
    PARAM_GRAD,
    PARAM_UPDATE,
    UNEDITED,
    WEIGHT,
)

OUTPUTS, INPUTS, FUNCTIONS = "outputs", "inputs", "functions between modules"
WEIGHTS, BIASES, PARAMETERS, OTHERS = "weights", "biases", "other parameters", "others"
SERIES = (OUTPUTS, INPUTS, FUNCTIONS, WEIGHTS, BIASES, PARAMETERS, OTHERS)
LINKED = (OUTPUTS, INPUTS)  # series whose points are connected by a line


@dataclass(frozen=True)
class FlowPoint:
    """One tensor: its row, counted from the top, and its numbers; None without finite entries.

    ``value`` is a mean or a norm, ``spread`` the standard deviation for a mean. ``nonfinite`` says
    that there are NaN or infinite entries, which the numbers leave out.
    """

    row: int
    value: float | None
    spread: float | None = None
    nonfinite: bool = False


@dataclass(frozen=True)
class LayerFlow:
    """A panel: the names of its rows, the points of each series, and the order of the rows."""

    rows: tuple[str, ...]
    series: dict[str, tuple[FlowPoint, ...]]
    quantity: str
    norms: bool
    order: str = "in execution order"


def layer_flows(records: Iterable[Record], named: bool) -> tuple[LayerFlow, ...]:
    """Return a panel for the values, one for the gradients, one for the updates of a step.

    A row is one call of a module, the first call at the top. Gradients, which are recorded from the
    last layer to the first, are reversed. Attention weights and values that an edit replaced are
    left out.
    """
    kept = [r for r in records if r.kind != ATTENTION and not r.kind.endswith(UNEDITED)]
    if not named and any(r.kind == OUTPUT for r in kept):
        kept = [r for r in kept if r.kind != INPUT]
    gradients = [r for r in kept if r.kind.endswith(".grad")]
    updates = [r for r in kept if r.kind == PARAM_UPDATE]
    weights = [r for r in kept if r.kind == WEIGHT]
    if weights:
        flow = _flow(weights, "weight: mean and standard deviation", False)
        return (replace(flow, order="in the order of the file"),)
    values = [r for r in kept if r not in gradients and r not in updates]
    flows = (
        (values, "value: mean and standard deviation", False),
        (_forward_order(gradients), "gradient: Euclidean norm", True),
        (updates, "update: Euclidean norm", True),
    )
    panels = tuple(_flow(group, quantity, norms) for group, quantity, norms in flows if group)
    if not panels:
        raise RequestError(
            "None of these tensors can be plotted layer by layer.",
            "Use --kind attention to plot attention weights.",
        )
    return panels


def _forward_order(records: Sequence[Record]) -> list[Record]:
    """Gradients in the order of the forward pass.

    A step records gradients of parameters only, in the order of the model.
    """
    backward = any(r.kind != PARAM_GRAD for r in records)
    return list(reversed(records)) if backward else list(records)


def _flow(records: Sequence[Record], quantity: str, norms: bool) -> LayerFlow:
    # The output of a module determines its row: its input comes before its submodules run.
    first = sorted(records, key=lambda r: not r.kind.startswith(OUTPUT))
    returned = {_row(record): record for record in reversed(first)}
    rows: dict[str, int] = {}
    for record in records:
        if returned[_row(record)] is record:
            rows[_row(record)] = len(rows)
    series: dict[str, list[FlowPoint]] = {}
    for record in records:
        stats = record.stats
        value, spread = (stats.norm, None) if norms else (stats.mean, stats.std)
        point = FlowPoint(rows[_row(record)], value, spread, bool(stats.nan or stats.inf))
        series.setdefault(_series(record), []).append(point)
    ordered = sorted(series, key=lambda name: SERIES.index(name))
    points = {name: tuple(sorted(series[name], key=lambda p: p.row)) for name in ordered}
    return LayerFlow(tuple(rows), points, quantity, norms)


def _row(record: Record) -> str:
    """The name of a call; a parameter's gradient belongs to the first call of its module."""
    if record.module == ROOT and record.kind.startswith(INPUT):
        return "the model's input"
    again = record.call > 1 and record.kind not in (PARAM_GRAD, PARAM_UPDATE)
    name = layer_text(record.module)
    return f"{name}:{record.call}" if again else name


def _series(record: Record) -> str:
    if record.kind == WEIGHT:
        return {"weight": WEIGHTS, "bias": BIASES}.get(record.what, PARAMETERS)
    if record.kind in (PARAM_GRAD, PARAM_UPDATE):
        name = record.what.rpartition(".")[0]
        return {"weight": WEIGHTS, "bias": BIASES}.get(name, PARAMETERS)
    base = record.kind.removesuffix(".grad")
    return {OUTPUT: OUTPUTS, INPUT: INPUTS, OP: FUNCTIONS}.get(base, OTHERS)
