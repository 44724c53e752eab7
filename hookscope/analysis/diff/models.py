"""Two models on one input: made ready, run, and compared in step."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from hookscope.analysis.diff.in_step import compare_in_step, naming, records_of
from hookscope.errors import LayerError
from hookscope.execution.prepare import Prepared, prepare, select_layers
from hookscope.execution.provenance import describe_run
from hookscope.inputs.batch import Batch
from hookscope.results.diff.choosing import concluded, narrowed
from hookscope.results.diff.judging import Judge
from hookscope.results.diff.matching import match
from hookscope.results.diff.result import Diff
from hookscope.sources.wrappers import copied
from hookscope.specs.diff import DiffRequest
from hookscope.specs.record_kinds import VALUES, resolve_kinds
from hookscope.specs.request import InputRequest, LayerSelection, chosen_options


def compare_models(request: DiffRequest) -> Diff:
    """Compare two models on one input."""
    a, b = prepared = _prepare_both(request)
    kinds = resolve_kinds(request.what or "output", VALUES)
    judge = Judge(request.atol, request.rtol, request.equal_nan)
    chosen_a, chosen_b = _chosen(prepared, request.selection)
    records_a, records_b = (records_of(one, kinds, side) for side, one in enumerate(prepared))
    found = narrowed(
        match(records_a, records_b, request.map or {}),
        lambda record: record.module in chosen_a,
        lambda record: record.module in chosen_b,
    )
    pairs = compare_in_step(prepared, kinds, found, judge)
    options = {k: v for k, v in chosen_options(request).items() if k not in ("a", "b")}
    origins = {"a": describe_run("diff", a, options), "b": describe_run("diff", b, options)}
    return concluded(found, pairs, strict=request.strict, equal_nan=judge.equal_nan, **origins)


def _prepare_both(request: DiffRequest) -> tuple[Prepared, Prepared]:
    """Load both models; the input is built once, as A takes it, and B gets the same values."""
    made: list[Prepared] = []
    requests = request.requests()
    for side in range(2):
        with naming(side):
            of_side = next(requests)
            if made:
                batch = Batch(made[0].value, made[0].sources, "")
                of_side = replace(of_side, input=InputRequest(batch))
            made.append(prepare(of_side))
    a, b = made
    if _tensors_and_modules(a.module) & _tensors_and_modules(b.module):
        # The hooks of both would be on one module.
        repair = "Build B anew rather than give the same model twice."
        b = replace(b, module=copied(b.module, "to run beside itself", repair))
    return a, b


def _tensors_and_modules(model: nn.Module) -> set[int]:
    return {id(x) for x in (*model.modules(), *model.parameters(), *model.buffers())}


def _chosen(
    prepared: tuple[Prepared, Prepared], selection: LayerSelection
) -> tuple[set[str], set[str]]:
    """The names of the chosen layers; a pattern may mean something in one model alone."""
    failed: list[LayerError] = []
    found: list[set[str]] = []
    for one in prepared:
        try:
            layers = select_layers(selection, one.module, one.loaded.word)
        except LayerError as error:
            failed.append(error)
            layers = ()
        found.append({layer.name for layer in layers})
    if len(failed) == len(prepared):
        raise failed[0]
    return found[0], found[1]
