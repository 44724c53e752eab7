"""A sweep: one run of the model for each layer, or each position, head or expert of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from hookscope.errors import ForwardError, LossError, RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import run_without_hooks
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import describe_arguments, prompt_tokens
from hookscope.execution.verification import first_difference
from hookscope.hooks.edits.bound_edit import BoundEdit, read_source
from hookscope.hooks.edits.edited_weights import check_weights
from hookscope.hooks.interventions import BoundInterventions
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import CallRegistry
from hookscope.model_analysis.sweep.block_reuse import (
    BlockObserver,
    BlockReuse,
    find_blocks,
    no_reuse,
    resolve_reuse,
)
from hookscope.model_analysis.sweep.edit_scan import (
    EditScan,
    fingerprint,
    no_layer_reason,
    warn_of_noise,
)
from hookscope.model_analysis.sweep.effect_measure import EffectMeasure
from hookscope.model_analysis.sweep.sweep_columns import (
    EditPlace,
    ExpertEdit,
    LayerShapes,
    common_expert_count,
    expert_layers,
    head_channels,
    position_places,
    resolve_head_count,
)
from hookscope.results.sweep import Sweep, SweepCell, SweepColumn, SweepPlace
from hookscope.specs.command_options import SweepOptions
from hookscope.specs.edit import WEIGHTS, Edit
from hookscope.specs.sweep_edit import expert_factor, parse_sweep_edit
from hookscope.specs.tensor_key import INPUT
from hookscope.tensors.nested import as_call

# The names of the modules in attention that get what the heads return, side by side.
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "out_lin", "dense", "proj", "wo", "o")


@dataclass(frozen=True)
class SweepEdit:
    """The edit of a sweep, for any of its layers."""

    edit: Edit
    stored: Mapping[str, Tensor]
    place: Mapping[str, Any]
    widths: Mapping[Layer, int]
    heads: int = 0
    factor: float | None = None

    @property
    def changes_input(self) -> bool:
        """Whether inputs of the layers are changed, and not outputs."""
        return bool(self.heads) or self.factor is not None

    def at(self, layer: Layer, place: EditPlace) -> BoundEdit:
        """Return the edit at one place of a layer."""
        side, target = self.edit.kind, layer.name
        channels: tuple[int, ...] | None = None
        if place.positions is not None:
            target += f"@{place.column.name}"
        if place.channel is not None:
            channels, target = (place.channel,), f"{target}[{place.channel}]"
        if place.head is not None:
            side = INPUT
            channels = head_channels(place.head, self.heads, self.widths[layer])
            target = f"input:{target}[{channels[0]}-{channels[-1]}]"
        edit = self.edit._replace(
            text=f"{target}={self.edit.what}",
            kind=side,
            pattern=layer.name,
            channels=channels,
            positions=place.positions,
        )
        return BoundEdit(edit, 0, layer, self.stored, self.place)


@dataclass(frozen=True)
class SweepJob:
    """The cells to compute, in their order, and what they need."""

    prepared: Prepared
    edit: SweepEdit
    layers: Mapping[str, Layer]
    places: Sequence[EditPlace]
    measure: EffectMeasure
    reuse: BlockReuse

    @property
    def order(self) -> list[SweepPlace]:
        """The places of the cells, in the order of the runs."""
        return [(name, column) for name in self.layers for column in range(len(self.places))]

    def run(self, place: SweepPlace) -> SweepCell:
        """Run the model once with the edit at one place."""
        name, column = place
        layer = self.layers[name]
        effect = self.measure.effect_of(partial(self._output, layer, column))
        return SweepCell(layer.name, layer.type, column, **effect)

    def _output(self, layer: Layer, column: int) -> Any:
        expert = self.places[column].expert
        if self.edit.factor is not None and expert is not None:
            change = ExpertEdit(expert, self.edit.factor)
            calls = CallRegistry(self.prepared.module)
            with self.reuse.skipping(layer), calls.subscribed(change, [layer]):
                return run_without_hooks(self.prepared)
        bound = self.edit.at(layer, self.places[column])
        with self.reuse.skipping(layer):
            return run_without_hooks(
                replace(self.prepared, interventions=BoundInterventions((bound,)))
            )


def prepare_sweep(
    prepared: Prepared,
    options: SweepOptions,
    measure: Callable[[Prepared, Any], EffectMeasure],
    metadata: dict[str, Any],
    *,
    resumable: bool,
) -> tuple[SweepJob, Sweep]:
    """Run the model without the edit; return the job and an empty result."""
    edit = parse_sweep_edit(options.edit)
    with explain_forward_errors(prepared):
        clean = run_without_hooks(prepared)
    compared = measure(prepared, clean)
    if options.heads is not None:
        prepared = replace(prepared, layers=_projections(prepared))
    if options.experts:
        prepared = replace(prepared, layers=expert_layers(prepared))
    place = {
        **describe_arguments(prepared.loaded, prepared.value),
        "options": {"generate": None},
    }
    shapes = _shapes(prepared, options)
    places = _places(prepared, options, shapes, place)
    factor = expert_factor(edit) if options.experts else None
    swept = SweepEdit(edit, read_source(edit, {}), place, {}, factor=factor)
    if options.heads is not None:
        swept = replace(swept, widths=shapes.input_widths(), heads=len(places))
        _check_widths(swept)
    prepared, scan, observer, noisy = _observe(prepared, swept, places, clean)
    layers = [layer for layer in scan.executed() if layer not in scan.faults]
    if not layers:
        raise RequestError(
            f"None of the selected layers can be changed by {options.edit};"
            f" {no_layer_reason(scan, tuple(scan.left_out()))}.",
            "Select other layers, or choose another --edit.",
        )
    result = Sweep(
        edit=options.edit,
        axis=_axis(options),
        metric=options.metric or _default_metric(compared),
        total=len(layers) * len(places),
        clean=compared.clean,
        layers=tuple(layer.name for layer in layers),
        columns=tuple(each.column for each in places),
        cells=(),
        left_out=tuple(scan.left_out()),
        coverage=scan.coverage,
        reuse="",
        metadata={**metadata, **(fingerprint(prepared, clean) if resumable else {})},
    )
    _check_metric(result)
    reuse = _reuse(prepared, clean, observer, layers, swept, noisy)
    job = SweepJob(prepared, swept, {x.name: x for x in layers}, places, compared, reuse)
    return job, replace(result, reuse=reuse.text)


def _observe(
    prepared: Prepared, edit: SweepEdit, places: Sequence[EditPlace], clean: Any
) -> tuple[Prepared, EditScan, BlockObserver, bool]:
    """Run the model again; return it, what was observed, and whether the outputs differ.

    A language model runs without its cache, which every layer changes, if the output is the same.
    """
    blocks = find_blocks(prepared.module)
    observed = {block.module: block for block in (*blocks, *prepared.layers)}
    without = _without_cache(prepared)
    for run in [prepared] if without is None else [without, prepared]:
        observer = BlockObserver(run, blocks)
        scan = _scan(run, edit, places)
        try:
            again = scan.run(observer, list(observed.values()))
        except ForwardError:
            if run is prepared:
                raise
            continue
        if run is prepared or not first_difference(clean, again):
            break
    return run, scan, observer, warn_of_noise(clean, again)


def _without_cache(prepared: Prepared) -> Prepared | None:
    """The same call of a language model without its cache; None if it has none."""
    args, kwargs = as_call(prepared.value)
    config = getattr(prepared.module, "config", None)
    if not getattr(config, "use_cache", False) or "use_cache" in kwargs:
        return None
    return replace(prepared, value=(tuple(args), {**kwargs, "use_cache": False}))


def _projections(prepared: Prepared) -> tuple[Layer, ...]:
    """The output projections of attention among the layers; all leaves if none has such a name."""
    named = tuple(
        layer
        for layer in prepared.layers
        if layer.name.rpartition(".")[2] in _PROJECTIONS and "att" in layer.name.lower()
    )
    leaves = tuple(layer for layer in prepared.layers if layer.leaf)
    if not named and not leaves:
        raise RequestError(
            "None of the selected layers is the output projection of attention.",
            "Select it with --layer, such as '*.self_attn.o_proj'.",
        )
    return named or leaves


def _shapes(prepared: Prepared, options: SweepOptions) -> LayerShapes:
    """The shapes of a run, if they are needed."""
    shapes = LayerShapes(prepared)
    known = prompt_tokens(prepared.loaded, prepared.value)
    if options.heads is not None or (options.positions is not None and not known):
        shapes.run()
    return shapes


def _places(
    prepared: Prepared, options: SweepOptions, shapes: LayerShapes, place: Mapping[str, Any]
) -> list[EditPlace]:
    if options.heads is not None:
        heads = range(resolve_head_count(prepared.module, options.heads))
        return [EditPlace(SweepColumn(str(n), str(n)), head=n) for n in heads]
    if options.experts:
        experts = range(common_expert_count(prepared.layers))
        return [EditPlace(SweepColumn(str(n), str(n)), expert=n) for n in experts]
    if options.positions is None:
        return [EditPlace(SweepColumn())]
    prompts = prompt_tokens(prepared.loaded, prepared.value)
    if prompts:
        counts = tuple(len(prompts[-1].real(row)) for row in range(len(prompts[-1].ids)))
    else:
        counts = shapes.position_counts(place)
    if not counts:
        raise RequestError(
            "--positions needs layers that return a sequence: batch, position, width.",
            "Leave it out, or select other layers.",
        )
    return position_places(prepared, options.positions, counts)


def _check_widths(edit: SweepEdit) -> None:
    """Raise RequestError if the number of heads does not divide the width of a layer's input."""
    for layer, width in edit.widths.items():
        if width % edit.heads:
            raise RequestError(
                f"{edit.heads} heads do not divide the {width} channels of the input of"
                f" {layer.name}.",
                "Give the number of heads of the model with --heads, or select other layers.",
            )


def _scan(prepared: Prepared, edit: SweepEdit, places: Sequence[EditPlace]) -> EditScan:
    def edits_of(layer: Layer) -> list[BoundEdit]:
        if edit.edit.kind == WEIGHTS or edit.factor is not None:
            return []
        if edit.heads and layer not in edit.widths:
            return []
        return [edit.at(layer, place) for place in places]

    scan = EditScan(prepared, edits_of)
    for layer in prepared.layers if edit.edit.kind == WEIGHTS else ():
        reason = check_weights(edit.at(layer, places[0]))
        if reason:
            scan.faults[layer] = reason
    return scan


def _axis(options: SweepOptions) -> str:
    if options.heads is not None:
        return "head"
    if options.experts:
        return "expert"
    return "" if options.positions is None else "position"


def _default_metric(measure: EffectMeasure) -> str:
    clean = measure.clean
    if clean.difference is not None:
        return "difference"
    return "output" if clean.score is None else "score"


def _check_metric(result: Sweep) -> None:
    """Raise LossError if the metric of the map is not defined."""
    if result.metric not in result.metrics:
        raise LossError(
            f"The metric {result.metric} is not defined for this output.",
            f"Use {', '.join(result.metrics)}.",
        )


def _reuse(
    prepared: Prepared,
    clean: Any,
    observer: BlockObserver,
    layers: Sequence[Layer],
    edit: SweepEdit,
    noisy: bool,
) -> BlockReuse:
    if edit.edit.kind == WEIGHTS:
        return no_reuse("other layers may read the changed weights")
    if noisy:
        return no_reuse("two runs differ")
    return resolve_reuse(prepared, clean, observer, layers, changes_input=edit.changes_input)
