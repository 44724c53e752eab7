"""What an ONNX exporter did to the modules of a model: which are folded, and which are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.file_analysis.record_matches import ExportRules
from hookscope.file_analysis.value_matches import Fingerprints
from hookscope.hooks.layers import layers_of, own_parameters
from hookscope.results.diff_result import DifferingModule
from hookscope.results.records import Record
from hookscope.sources.onnx.graph_modules import GraphModel
from hookscope.sources.onnx.module_tree import has_absorbed_norm, holders, norm_that_absorbed
from hookscope.sources.wrappers import class_name
from hookscope.specs.patterns import ROOT

_MOST = 4  # operators of one module that are shown
_LONGEST = 6  # numbers of one attribute
_FLOAT, _INT, _TEXT, _FLOATS, _INTS = 1, 2, 3, 6, 7  # types of attributes

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
EQUAL, UNEQUAL, TRANSPOSED = "equal", "unequal", "transposed"


def describe_operators(model: GraphModel, name: str) -> str:
    """Return the operators of a module's own nodes, such as ``BatchNormalization(epsilon=0.001)``.

    Nodes of its children, constants and computations of sizes are left out.
    """
    program = model._onnx_program
    protos = {
        output: node for node in program.session.file.proto.graph.node for output in node.output
    }
    texts = []
    for node in program.graph.nodes:
        levels = node.scope.levels if node.scope is not None else None
        own = levels is not None and (levels[-1].name if levels else "") == name
        if own and not node.is_plain and node.outputs:
            texts.append(_text(protos[node.outputs[0]]))
    shown = list(dict.fromkeys(texts))
    rest = [f"{len(shown) - _MOST} more"] if len(shown) > _MOST else []
    return ", ".join(shown[:_MOST] + rest)


def _text(proto: Any) -> str:
    values = {attribute.name: _value(attribute) for attribute in proto.attribute}
    return f"{proto.op_type}({', '.join(f'{k}={v}' for k, v in sorted(values.items()) if v)})"


def _value(attribute: Any) -> str:
    if attribute.type == _FLOAT:
        return f"{attribute.f:g}"
    if attribute.type == _INT:
        return str(attribute.i)
    if attribute.type == _TEXT:
        return bytes(attribute.s).decode(errors="replace") if len(attribute.s) < 40 else ""
    numbers = {_FLOATS: attribute.floats, _INTS: attribute.ints}.get(attribute.type, ())
    if not 0 < len(numbers) <= _LONGEST:
        return ""
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"


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
        ran = [(record.module, record.type) for record in records[side]]
        for norm, convolution in _absorbed_norms(model, ran, other).items():
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


def absent_layers(model: nn.Module, file: GraphModel) -> dict[str, str]:
    """Return the layers of a model that an exporter folded or left out, each with the reason."""
    reasons = _absent(model, file)
    defined = [(layer.name, layer.type) for layer in layers_of(model)]
    for norm, convolution in _absorbed_norms(model, defined, file).items():
        reasons.setdefault(norm, f"folded into {convolution} by the exporter")
    return reasons


def layers_with_changed_weights(file: GraphModel) -> set[str]:
    """Return the layers of a file into which the exporter folded another one."""
    changed = {name for name, part in file.named_modules() if has_absorbed_norm(part)}
    return changed | {*map(norm_that_absorbed, file._hookscope_absent.values())}


def _is_idle(module: nn.Module) -> bool:
    """Whether a module in eval mode returns its input."""
    leaves = [type(inner).__name__ for inner in module.modules() if not inner._modules]
    return all(name in _IDLE or name.startswith("Dropout") for name in leaves)


def _absorbed_norms(
    model: nn.Module, ran: Iterable[tuple[str, str]], file: GraphModel
) -> dict[str, str]:
    """Batch norms of a model, each with the convolution of the file that it is folded into.

    With the older exporter, it is the norm that runs next after the convolution. ``ran`` has the
    names and classes of the layers in their order.
    """
    parts = dict(file.named_modules())
    convolutions = {name for name, part in parts.items() if has_absorbed_norm(part)}
    absorbed: Mapping[str, str] = getattr(model, "_hookscope_absent", {})
    norms = {}
    for name in convolutions:
        if norm := norm_that_absorbed(absorbed.get(name, "")):
            norms[norm] = name
    ordered = list(ran)
    for n, (module, _) in enumerate(ordered):
        if module in convolutions:
            for after, kind in islice(ordered, n + 1, n + 1 + _NEXT):
                if "BatchNorm" in kind and after not in parts:
                    norms[after] = module
                    break
    return norms


def describe_difference(
    models: tuple[nn.Module, nn.Module], names: tuple[str, str]
) -> DifferingModule:
    """Return what a module is in both models, and which of its parameters are equal."""
    pairs = list(_pairs(*models))
    prefix = "" if names[0] == ROOT else names[0]
    same = names[0] == names[1]
    own = {name: relation for name, owner, relation in pairs if same and owner == prefix}
    a, b = (_description(model, name) for model, name in zip(models, names, strict=True))
    return DifferingModule(
        names,
        (a, b),
        tuple(name for name in own if own[name] == EQUAL),
        tuple(name for name in own if own[name] == UNEQUAL),
        tuple(name for name in own if own[name] == TRANSPOSED),
        len(pairs),
        sum(relation == UNEQUAL for _, _, relation in pairs),
    )


def _description(model: nn.Module, name: str) -> str:
    path = "" if name == ROOT else name
    if isinstance(model, GraphModel):
        return describe_operators(model, path)
    module = model.get_submodule(path)
    return f"{class_name(module)}({module.extra_repr()})" if not module._modules else ""


def _pairs(a: nn.Module, b: nn.Module) -> Iterator[tuple[str, str, str]]:
    """The name, owner and relation of tensors in both models, but not in modules that are folded.

    A folded module has tensors of other shapes than before, or is marked.
    """
    parts_b = dict(b.named_modules())
    for name, part in a.named_modules():
        other = parts_b.get(name)
        if other is None or has_absorbed_norm(part) or has_absorbed_norm(other):
            continue
        tensors, others = _tensors(part), _tensors(other)
        shared = [key for key in tensors if key in others]
        relations = {key: _relation(tensors[key], others[key]) for key in shared}
        if all(relations.values()):
            for key, relation in relations.items():
                yield f"{name}.{key}" if name else key, name, relation


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    found = {**own_parameters(module), **dict(module.named_buffers(recurse=False))}
    return {name: tensor.detach() for name, tensor in found.items() if tensor.ndim}


def _relation(a: Tensor, b: Tensor) -> str:
    """How two tensors relate; empty if their shapes have nothing to do with each other."""
    b = b.to(a.device)
    if a.shape == b.shape and torch.equal(a.to(b.dtype), b):
        return EQUAL
    if a.ndim == 2 and a.T.shape == b.shape and torch.equal(a.T.to(b.dtype), b):
        return TRANSPOSED
    return UNEQUAL if a.shape == b.shape else ""
