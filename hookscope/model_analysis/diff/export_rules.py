"""What an ONNX exporter did to the modules of a model: which are folded, and which are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from torch import nn

from hookscope.file_analysis.captures.record_matches import ExportRules
from hookscope.file_analysis.captures.value_matches import Fingerprints
from hookscope.hooks.layers import layers_of
from hookscope.results.records import Record
from hookscope.sources.onnx.absent_modules import has_absorbed_norm, holders, norm_that_absorbed
from hookscope.sources.onnx.graph_modules import GraphModel

_NEXT = 2  # records after that of a convolution in which its batch normalization is looked for
_IDLE = (
    "Dropout",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "Identity",
    "DropPath",
    "StochasticDepth",
)
_LEFT_OUT = "the exporter left it out, because it changes nothing"
_ABSORBED = "its batch norm {} is folded into it"
_CUT = "its last module {} has {} folded into it by the exporter"


def export_rules(
    models: tuple[nn.Module, nn.Module],
    records: tuple[Sequence[Record], Sequence[Record]],
    prints: Fingerprints,
) -> ExportRules | None:
    """Return how the records of two models differ by what an exporter did."""
    if not any(isinstance(model, GraphModel) for model in models):
        return None
    folded: dict[str, str] = {}
    absent: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for side, model in enumerate(models):
        other = models[1 - side]
        if not isinstance(other, GraphModel):
            continue
        absent[side].update(_absent(model, other))
        cut = {
            name: part._onnx_cut
            for name, part in other.named_modules()
            if getattr(part, "_onnx_cut", "")
        }
        for norm, convolution in _absorbed_norms(model, records[side], other).items():
            absent[side].setdefault(convolution, _ABSORBED.format(norm))
            for holder in holders(convolution, norm):
                cut[holder] = _CUT.format(convolution, norm)
            folded |= {convolution: norm} if side else {norm: convolution}
        for reasons in absent:
            reasons.update(cut)
    return ExportRules(folded, absent, prints)


def _absent(model: nn.Module, file: GraphModel) -> dict[str, str]:
    """Modules of a model that a file does not have or does not call, and why."""
    parts = dict(file.named_modules())
    reasons = {
        name: part._hookscope_unavailable
        for name, part in parts.items()
        if getattr(part, "_hookscope_unavailable", "")
    }
    for layer in layers_of(model):
        for name in (layer.name, *layer.aliases):
            if name in file._hookscope_absent:
                reasons[layer.name] = file._hookscope_absent[name]
        if layer.name not in parts and layer.name not in reasons and _is_idle(layer.module):
            reasons[layer.name] = _LEFT_OUT
    return reasons


def _is_idle(module: nn.Module) -> bool:
    """Whether a module in eval mode returns its input."""
    leaves = [type(inner).__name__ for inner in module.modules() if not inner._modules]
    return all(name in _IDLE or name.startswith("Dropout") for name in leaves)


def _absorbed_norms(
    model: nn.Module, records: Iterable[Record], file: GraphModel
) -> dict[str, str]:
    """Batch norms of a model, each with the convolution of the file that it is folded into.

    The older exporter gives the weights of both to the convolution, whose output is then that of
    the norm. The norm is the one that runs next. In a file of the newer exporter it is the one
    that absorbed the convolution.
    """
    parts = dict(file.named_modules())
    convolutions = {name for name, part in parts.items() if has_absorbed_norm(part)}
    absorbed: Mapping[str, str] = getattr(model, "_hookscope_absent", {})
    norms = {}
    for name in convolutions:
        if norm := norm_that_absorbed(absorbed.get(name, "")):
            norms[norm] = name
    ordered = list(records)
    for n, record in enumerate(ordered):
        if record.module in convolutions:
            for after in islice(ordered, n + 1, n + 1 + _NEXT):
                if "BatchNorm" in after.type and after.module not in parts:
                    norms[after.module] = record.module
                    break
    return norms
