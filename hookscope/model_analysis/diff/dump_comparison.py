"""Comparison of a model with the activations that another program wrote."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.execution.prepare import find_model, prepare, select_layers
from hookscope.execution.provenance import describe_run
from hookscope.file_analysis.dump_matches import (
    INPUTS,
    diff_with_dump,
    dump_comparator,
    input_names,
    match_dump,
    rules_of,
)
from hookscope.file_analysis.weight_diff import WeightDiff
from hookscope.files.signatures import signature_of
from hookscope.hooks.layers import names_in
from hookscope.inputs.input_reader import Batch, tensor_entries
from hookscope.model_analysis.diff.model_comparison import compare_with_model
from hookscope.model_analysis.diff.record_stream import list_records
from hookscope.results.diff_result import Diff, TensorComparison
from hookscope.results.records import Record
from hookscope.specs.diff_request import DumpRequest
from hookscope.specs.diff_sides import label_errors
from hookscope.specs.request import InputRequest, chosen_options
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.specs.weight_options import WeightDiffOptions
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.tensors.tensor_stats import numpy_blocks

log = logging.getLogger("hookscope")


def compare_model_with_dump(dump: WeightSet, request: DumpRequest) -> Diff | WeightDiff:
    """Run a model, A, and compare it with a dump, B; its parameters if that has their names."""
    rules, run = rules_of(request), request.of_a.requests[0]
    with label_errors(0):
        loaded = find_model(run.model, run.run.seed)
    modules = names_in(loaded.module)
    if not request.map and not (set(dump) - set(loaded.module.state_dict())):
        options = WeightDiffOptions(request.layers, request.atol, request.rtol, request.strict)
        return compare_with_model(run.model.model, dump, run.model, run.run.seed, options)
    parameters = tuple(signature_of(loaded.module.forward).parameters)
    inputs = input_names(dump, modules, type(loaded.module).__name__, parameters)
    if not request.has_input:
        run = replace(run, input=_input_of(dump, inputs, parameters))
    with label_errors(0):
        prepared = prepare(run, loaded=loaded)
    kinds = request.kinds or {OUTPUT, INPUT}
    records = list_records(prepared, kinds, 0)
    found = match_dump(records, dump, request.prefixes, rules, inputs.values())
    layers = select_layers(request.selection, prepared.module, loaded.spec)
    chosen = {layer.name for layer in layers}
    narrowed = bool(chosen_options(request.selection) or request.kinds)
    found = found.selected(lambda record: record.module in chosen, narrowed)
    partners = {a.key: (b, by) for a, b, by in found.matches.pairs}
    comparator, rows = dump_comparator(request), dict[str, TensorComparison]()

    def compare(a: Record, tensor: Tensor) -> None:
        if a.key in partners:
            b, by = partners[a.key]
            blocks = partial(numpy_blocks, tensor), found.values[a.key].blocks
            rows[a.key] = comparator.compare(a, b, by, *blocks)

    list_records(prepared, kinds, 0, compare)
    options_of_run = {k: v for k, v in chosen_options(request).items() if k not in ("a", "b")}
    return diff_with_dump(
        found, rows.values(), request, describe_run("diff", prepared, options_of_run)
    )


def _input_of(
    dump: WeightSet, inputs: Mapping[str, str], parameters: Collection[str]
) -> InputRequest:
    """The input in the dump."""
    first = next((name for name in INPUTS if name in inputs), None)
    if not inputs:
        raise InputError(
            f"{dump.path} has no tensor named {', '.join(INPUTS[:-1])} or {INPUTS[-1]}, and no"
            " input is given.",
            "Give the input that the other program had: --input FILE.",
        )
    args: tuple[Tensor, ...] = ()
    if first is not None and (first == INPUTS[0] or first not in parameters):
        args = (_tensor(dump, inputs[first], first),)
    kwargs = {
        name: _tensor(dump, own, name)
        for name, own in inputs.items()
        if name in parameters and not (args and name == first)
    }
    value: Any = (args, kwargs) if args and kwargs else args or kwargs
    names = ", ".join(inputs.values())
    log.info("input: %s of %s", names, dump.path)
    batch = Batch(value, tensor_entries(value, f"{dump.path}: {names}", None), "")
    return InputRequest(batch)


def _tensor(dump: WeightSet, name: str, argument: str) -> Tensor:
    """A tensor of the dump; tokens without a batch dimension get one."""
    tensor = torch.from_numpy(dump.tensor(name))
    return tensor[None] if argument == "input_ids" and tensor.ndim == 1 else tensor
