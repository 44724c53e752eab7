"""Comparison of two models on one input: their records are matched, and each pair is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from hookscope.errors import InputError, LayerError, RequestError
from hookscope.execution.compiled_leaves import CompiledLeaves, check_compiler
from hookscope.execution.prepare import Prepared, find_model, prepare, select_layers
from hookscope.execution.provenance import describe_run
from hookscope.file_analysis.capture_comparator import Comparator
from hookscope.file_analysis.record_matches import (
    build_diff,
    match_records,
    select_matches,
)
from hookscope.file_analysis.value_matches import Fingerprint
from hookscope.file_analysis.weight_diff import WeightDiff, compare_weights
from hookscope.files.progress_types import Progress
from hookscope.hooks.layers import check_not_lazy, is_of_file
from hookscope.inputs.input_reader import Batch
from hookscope.model_analysis.diff.batch_statistics import far_statistics
from hookscope.model_analysis.diff.export_rules import describe_difference, export_rules
from hookscope.model_analysis.diff.local_comparison import check_local, compare_locally
from hookscope.model_analysis.diff.own_errors import CallId, OwnErrors
from hookscope.model_analysis.diff.paired_runs import compare_pairs, compare_same_keys
from hookscope.model_analysis.diff.record_stream import list_records
from hookscope.results.diff_result import Diff, TensorComparison
from hookscope.results.local_diff import LocalDiff
from hookscope.results.records import Record
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.model_weights import model_weights
from hookscope.sources.onnx.graph_modules import GraphModel, accepts
from hookscope.sources.structure import structure_of
from hookscope.sources.wrappers import copy_model
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.diff_sides import SIDES, label_errors
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
    chosen_options,
)
from hookscope.specs.tensor_key import OUTPUT
from hookscope.specs.weight_options import WeightDiffOptions
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.tensors.nested import as_call
from hookscope.tensors.tensor_stats import numpy_blocks

_ORIGINS = {
    "random": "initial values, seed {0}",
    "as built": "values as built, seed {0}",
    "as saved": "values as saved",
    "as given": "values as given",
}


def compare_models(request: DiffRequest) -> Diff | LocalDiff:
    """Compare two models on one input."""
    a, b = prepared = _prepare_both(request)
    if request.is_local:
        check_local(prepared)
    kinds = request.kinds or {OUTPUT}
    engines = any(isinstance(model.module, GraphModel) for model in prepared)
    comparator = Comparator(request.atol, request.rtol, request.equal_nan, engines)
    models = [(model.module, model.loaded.spec) for model in prepared]
    chosen_a, chosen_b = selected_names(models, request.selection)
    prints: tuple[dict[str, Fingerprint], dict[str, Fingerprint]] = ({}, {})
    compared: dict[str, TensorComparison] = {}
    own: dict[CallId, OwnErrors] | None = None

    def look(side: int, record: Record, tensor: Tensor) -> None:
        prints[side][record.key] = Fingerprint.of(numpy_blocks(tensor))

    if engines:
        records_a, records_b = (
            list_records(model, kinds, n, partial(look, n)) for n, model in enumerate(prepared)
        )
    else:
        same = compare_same_keys(prepared, kinds, chosen_a, comparator, request.is_local)
        (records_a, records_b), compared, own = same.records, same.comparisons, same.own
    for model, one_request in zip(prepared, request.requests, strict=True):
        if one_request.model.onnx_optimize not in (None, "none"):
            cast(GraphModel, model.module).separate_depths()
    rules = export_rules((a.module, b.module), (records_a, records_b), prints)
    all_matches = match_records(records_a, records_b, request.prefixes, rules)
    matches = select_matches(
        all_matches,
        lambda record: record.module in chosen_a,
        lambda record: record.module in chosen_b,
    )
    rest = tuple(pair for pair in matches.pairs if pair[0].key not in compared)
    if rest:
        compared |= compare_pairs(prepared, kinds, replace(matches, pairs=rest), comparator)
    pairs = [compared[record.key] for record, _, _ in matches.pairs if record.key in compared]
    if a.train != b.train:
        pairs = _with_statistics(pairs, prepared)
    options = {k: v for k, v in chosen_options(request).items() if k not in ("a", "b")}
    origins = {"a": describe_run("diff", a, options), "b": describe_run("diff", b, options)}
    found = build_diff(
        matches,
        pairs,
        strict=request.strict,
        equal_nan=comparator.equal_nan,
        rules=rules,
        **origins,
    )
    if request.is_local:
        return compare_locally(
            prepared, all_matches, matches, found, own, request.wants_floor, request.rtol
        )
    if not engines:
        return found
    given = request.atol is not None and request.rtol is not None
    module = None
    if found.first is not None:
        first, second = next((x, y) for x, y, _ in matches.pairs if x.key == found.first.key)
        module = describe_difference((a.module, b.module), (first.module, second.module))
    return replace(found, engines=not given, module=module)


def _with_statistics(
    rows: list[TensorComparison], prepared: tuple[Prepared, Prepared]
) -> list[TensorComparison]:
    """Add what is known of batch norms, if one of the models runs in training mode."""
    side = 0 if prepared[0].train else 1
    with label_errors(side):
        reasons = far_statistics(prepared[side])
    return [
        replace(row, reason="; ".join(filter(None, (row.reason, reasons.get(key)))))
        for row, key in ((row, (row.key, row.other)[side]) for row in rows)
    ]


def _prepare_both(request: DiffRequest) -> tuple[Prepared, Prepared]:
    """Load both models. The input is built once, for one of them, and the other gets its values."""
    for_file = request.requests[1].model.source == ONNX
    a, b = _prepare_for_file(request) if for_file else _prepare_in_order(request)
    if _tensors_and_modules(a.module) & _tensors_and_modules(b.module):
        # One module would have the hooks of both.
        repair = "Build a second model instead of passing the same one twice."
        b = replace(b, module=copy_model(b.module, "to be compared with itself", repair))
    if any(request.compiled):
        a, b = _compile((a, b), request.compiled)
    return a, b


def _compile(prepared: Sequence[Prepared], wanted: Sequence[bool]) -> list[Prepared]:
    """Return both models, those that are ``wanted`` with compiled modules."""
    done = []
    for side, model in enumerate(prepared):
        if structure_of(model.module).has_compiled():  # then all modules run uncompiled
            raise RequestError(
                f"{SIDES[side]} has a module that torch.compile has compiled already.",
                "Pass the model that was given to torch.compile.",
            )
        if wanted[side]:
            if is_of_file(model.module):
                option = f"--compile-{SIDES[side].lower()}"
                raise RequestError(
                    f"{option} compiles modules of Python code, and {SIDES[side]} is a scripted,"
                    " exported or ONNX file.",
                    "Leave it out, or give the Python code that made the file: FILE.py:NAME.",
                )
            check_compiler(model.device)
            model = replace(model, compiled=CompiledLeaves(model.module))
        done.append(model)
    return done


def _prepare_in_order(request: DiffRequest) -> tuple[Prepared, Prepared]:
    """Load both models, with the input as A takes it."""
    with label_errors(0):
        a = prepare(request.requests[0])
    with label_errors(1):
        return a, prepare(_with_input_of(a, request.requests[1]))


def _prepare_for_file(request: DiffRequest) -> tuple[Prepared, Prepared]:
    """Load both models, with the input that A takes, or the one that the ONNX file B takes.

    B decides if A has no input, or one that does not fit the file, which may allow only one shape.
    """
    request_a, request_b = request.requests
    with label_errors(1):
        file = find_model(request_b.model, request.seed)
    try:
        with label_errors(0):
            a: Prepared | None = prepare(request_a)
    except InputError:
        if request.has_input:
            raise
        a = None
    if a is None or not accepts(file.module, *as_call(a.value)):
        with label_errors(1):
            b = prepare(request_b, loaded=file)
        with label_errors(0):
            return prepare(_with_input_of(b, request_a), loaded=a.loaded if a else None), b
    with label_errors(1):
        return a, prepare(_with_input_of(a, request_b), loaded=file)


def _with_input_of(prepared: Prepared, request: Request) -> Request:
    return replace(request, input=InputRequest(Batch(prepared.value, prepared.sources, "")))


def _tensors_and_modules(model: nn.Module) -> set[int]:
    return {id(x) for x in (*model.modules(), *model.parameters(), *model.buffers())}


def selected_names(
    models: Sequence[tuple[nn.Module, str]], selection: LayerSelection
) -> tuple[set[str], set[str]]:
    """Return the names of the selected layers of two models, each with its name for errors.

    A pattern may match layers of one model only.
    """
    errors: list[LayerError] = []
    names: list[set[str]] = []
    for module, spec in models:
        try:
            layers = select_layers(selection, module, spec)
        except LayerError as error:
            errors.append(error)
            layers = ()
        names.append({layer.name for layer in layers})
    if len(errors) == len(models):
        raise errors[0]
    return names[0], names[1]


def compare_with_model(
    a: Any,
    b: Any,
    request: ModelRequest,
    seed: int,
    options: WeightDiffOptions,
    progress: Progress | None = None,
) -> WeightDiff:
    """Compare the parameters and saved buffers of a model, A or B, with weights, by name."""
    is_b = b is request.model
    loaded = find_model(request, seed)
    check_not_lazy(loaded.module)
    model, rename = _weights_of(loaded, seed), options.rename
    if isinstance(rename, Mapping):  # as with --weights FILE, it is about names in the file
        options = replace(options, rename=(rename, {}) if is_b else ({}, rename))
    a, b = (a, model) if is_b else (model, b)
    return compare_weights(a, b, options, progress, "A" if is_b else "B")


def _weights_of(loaded: LoadedModel, seed: int) -> WeightSet:
    name = loaded.weights.name
    kind = _ORIGINS.get(name, f"weights {name}").format(seed)
    return model_weights(loaded.module, loaded.spec, kind)
