"""Comparison of two models module by module: where differences arise, and how large they may be."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor, nn

from hookscope.errors import ForwardError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.file_analysis.record_matches import RecordMatches
from hookscope.files.words import bytes_text
from hookscope.hooks.layers import layers_of, submodule
from hookscope.model_analysis.diff.graph_errors import holds_codes, own_errors_of_graph
from hookscope.model_analysis.diff.own_errors import CallId, Casting, OwnErrors, own_errors
from hookscope.results.diff_result import DIFFERS, Diff, TensorComparison
from hookscope.results.local_diff import LocalDiff, ModuleError
from hookscope.results.records import Record
from hookscope.sources.onnx.graph_modules import GraphModel
from hookscope.sources.structure import modules_in
from hookscope.sources.wrappers import copy_model
from hookscope.specs.diff_request import FLOAT64
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import OUTPUT
from hookscope.specs.tolerances import engine_tolerances, tolerances
from hookscope.tensors.nested import map_tensors

_NOT_AGAIN = "it was not called again"
_REPAIR = "Write --floor none, which compares with the tolerance."
_LARGEST_COPY = 4 * 10**9  # bytes of a copy that nobody asked for
log = logging.getLogger("hookscope")


def check_local(prepared: Sequence[Prepared]) -> None:
    """Raise RequestError if the modules of A cannot be run in another dtype or one by one."""
    if isinstance(prepared[0].module, GraphModel):
        raise RequestError(
            "A is an ONNX file. With --local and --floor, only B can be one.",
            "Name the model that was exported first and the file second.",
        )


def compare_locally(
    prepared: tuple[Prepared, Prepared],
    matches: RecordMatches,
    shown: RecordMatches,
    found: Diff,
    known: Mapping[CallId, OwnErrors] | None,
    wants_floor: bool | None,
    rtol: float | None,
) -> LocalDiff:
    """Return the own error of each call, from all ``matches``; those of ``shown`` are listed.

    ``known`` has the own errors of calls with one name, which are used if the matches are those.
    Without a floor, errors are measured against the relative tolerance. If ``wants_floor`` is None,
    it is measured where that is possible.
    """
    pairs = _call_pairs(matches)
    engines = isinstance(prepared[1].module, GraphModel)
    if engines:
        outputs = [(a, b) for a, b, _ in matches.pairs if a.kind == OUTPUT]
        own = own_errors_of_graph(*prepared, outputs) if outputs else {}
    elif known is not None and _are_of(known, pairs):
        own = {call: known[call] for call in known if call in pairs}
    else:
        own = own_errors(*prepared, pairs)
    precision = max((model.dtype for model in prepared), key=_epsilon)
    # The rounding errors of A are those in the dtype of B, if that is less precise.
    dtype = FLOAT64 if precision == prepared[0].dtype else precision
    units: Mapping[CallId, float | OwnErrors] | None = None
    if wants_floor:
        units = _floors(prepared[0], dtype, pairs)
    elif wants_floor is None:
        units = _possible_floors(prepared, dtype, pairs)
    least = _epsilon(precision) / 2
    if units is None:
        default = engine_tolerances(precision, precision, 0, None, rtol) if engines else None
        least = (default or tolerances(precision, precision, None, rtol))[1]
    rows: defaultdict[CallId, list[TensorComparison]] = defaultdict(list)
    compared = {row.key: row for row in found.rows}
    calls: dict[CallId, tuple[Record, Record]] = {}
    for a, b, _ in shown.pairs:
        calls.setdefault((a.module, a.call), (a, b))
        if a.kind == OUTPUT and a.key in compared:
            rows[a.module, a.call].append(compared[a.key])
    errors = [
        _with_own(
            _accumulated(a, b, rows[call]), own.get(call), (units or {}).get(call, 0.0), least
        )
        for call, (a, b) in calls.items()
    ]
    if all(error.own is None for error in errors):
        raise RequestError(
            "No module could be compared on equal inputs: none of its outputs is compared.",
            "Compare outputs, and layers that both models have: --what output, --layer GLOB.",
        )
    if units is None:
        return LocalDiff(found, tuple(errors))
    log.info("floor: the rounding errors of A's modules, from a run in %s", dtype)
    return LocalDiff(found, tuple(errors), dtype, all_count=not wants_floor)


def _call_pairs(matches: RecordMatches) -> dict[CallId, CallId]:
    pairs: dict[CallId, CallId] = {}
    for a, b, _ in matches.pairs:
        pairs.setdefault((b.module, b.call), (a.module, a.call))
    return pairs


def _are_of(known: Mapping[CallId, OwnErrors], pairs: Mapping[CallId, CallId]) -> bool:
    """Whether the own errors are those of the pairs: the others had none to take from a caller."""
    same = all(b == a and a in known for b, a in pairs.items())
    return same and not any(
        own.reason or own.unmatched or any(own.errors.values())
        for call, own in known.items()
        if call not in pairs
    )


def _epsilon(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype)).eps


def _possible_floors(
    prepared: tuple[Prepared, Prepared], floor: str, pairs: Mapping[CallId, CallId]
) -> dict[CallId, float | OwnErrors] | None:
    """Return the floors that nobody asked for; None where they would say nothing or be too large.

    The errors of a quantized model and of an ONNX file are not those of rounding in float32.
    """
    a = prepared[0]
    has_own_numbers = any(
        isinstance(model.module, GraphModel) or _is_quantized(model.module) for model in prepared
    )
    if has_own_numbers or floor == a.dtype or a.device.type == "mps":
        return None
    size = sum(tensor.numel() for tensor in (*a.module.parameters(), *a.module.buffers())) * 8
    if size > _LARGEST_COPY:
        log.info(
            "floor: none, because a copy of A in float64 would have %s (--floor float64 makes it)",
            bytes_text(size),
        )
        return None
    try:
        return _floors(a, floor, pairs)
    except (RequestError, torch.OutOfMemoryError) as error:
        log.info("floor: none (%s)", getattr(error, "message", "out of memory"))
        return None


def _is_quantized(model: nn.Module) -> bool:
    """Whether parameters or layers are quantized, by torch or by a package with own tensors."""
    tensors = (*model.parameters(), *model.buffers())
    return any("quantized" in type(module).__module__ for module in modules_in(model)) or any(
        tensor.is_quantized or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer)
        for tensor in tensors
    )


def _floors(
    a: Prepared, floor: str, pairs: Mapping[CallId, CallId]
) -> dict[CallId, float | OwnErrors]:
    """How A's modules differ in another precision; a number where that is not known.

    Modules whose operations do not exist in it keep their dtype, and get the largest floor.
    """
    a = replace(a, compiled=None)  # else what the compiler does wrong would count as rounding
    dtype = getattr(torch, floor)
    same = {call: call for call in pairs.values()}
    kept: frozenset[str] = frozenset()
    while True:
        try:
            found = own_errors(a, cast_copy(a, dtype, _REPAIR, kept), same, Casting(dtype, kept))
        except ForwardError as error:
            failed = _alike(a.module, error.layer)
            if error.layer == ROOT or failed <= kept:
                cause = error.message.removeprefix("A: ")
                raise RequestError(
                    f"A does not run in {dtype}, so there is no floor. {cause}",
                    _REPAIR,
                ) from error
            kept |= failed
        else:
            known = [e for own in found.values() for e in own.errors.values() if isfinite(e)]
            largest = max(known, default=0.0)
            if all(call[0] in kept for call in found):
                raise RequestError(
                    f"No module of A runs in {dtype}, so there is no floor.", _REPAIR
                )
            return {call: largest if call[0] in kept else own for call, own in found.items()}


def _alike(model: nn.Module, name: str) -> frozenset[str]:
    """The names of the modules of the same class as a module, and of those within them."""
    kind = type(submodule(model, name))
    layers = layers_of(model)
    inside = {m for x in layers if type(x.module) is kind for m in modules_in(x.module)}
    return frozenset(layer.name for layer in layers if layer.module in inside)


def cast_copy(
    a: Prepared, dtype: torch.dtype, repair: str, kept: frozenset[str] = frozenset()
) -> Prepared:
    """Return a copy of a model and its input in another dtype, but for the kept modules.

    If the model cannot be copied, the error has the hint ``repair``.
    """
    module = copy_model(a.module, f"to be run in {dtype}", repair)
    inside = {m for name in kept for m in modules_in(submodule(module, name) or module)}
    for inner in modules_in(module):
        if inner not in inside:
            _cast_tensors(inner, dtype)
    value = map_tensors(a.value, lambda path, x: x.to(dtype) if x.is_floating_point() else x)
    return replace(a, module=module, value=value)


def _cast_tensors(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the floating-point parameters and buffers of a module, not those of its children."""
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)


def _accumulated(a: Record, b: Record, rows: Sequence[TensorComparison]) -> ModuleError:
    """The error of the outputs of a call, when both models run from the input."""
    known = [row.error for row in rows]
    differs = any(row.verdict == DIFFERS for row in rows)
    if holds_codes(a, b):
        known = [None]
    worst = None if None in known else max(filter(None, known), default=0.0 if known else None)
    note = "; ".join(row.reason for row in rows if row.reason)
    return ModuleError(a.module, b.module, a.call, a.type, worst, differs, note=note)


def _with_own(
    error: ModuleError, own: OwnErrors | None, units: float | OwnErrors, least: float
) -> ModuleError:
    """Add the own error, of the tensor with the most units."""
    if own is None or own.reason:
        return replace(error, reason=_NOT_AGAIN if own is None else own.reason)
    floors = dict.fromkeys(own.errors, units) if isinstance(units, float) else units.errors
    # A floor that is not finite says nothing: what is finite in A is not so in the other dtype.
    finite = {key: unit for key, unit in floors.items() if isfinite(unit)}
    unmatched = tuple(own.unmatched)
    candidates = [
        replace(
            error,
            own=size,
            tensor=key,
            unit=max(finite.get(key, 0.0), least),
            a_is_zero=key in own.zeros,
            unmatched=unmatched,
        )
        for key, size in own.errors.items()
    ]
    none = replace(error, own=0.0, unit=least, unmatched=unmatched)
    return max(candidates, key=lambda one: one.units or 0.0, default=none)
