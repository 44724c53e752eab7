"""What is known of the first module that differs between a model and an ONNX file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hookscope.results.diff_result import DifferingModule
from hookscope.sources.onnx.absent_modules import has_absorbed_norm
from hookscope.sources.onnx.graph_modules import GraphModel
from hookscope.sources.onnx.operator_texts import describe_operators
from hookscope.sources.wrappers import class_name
from hookscope.specs.patterns import ROOT

EQUAL, UNEQUAL, TRANSPOSED = "equal", "unequal", "transposed"


@dataclass(frozen=True)
class _Pair:
    """A tensor that both models have under one name."""

    name: str
    owner: str
    relation: str


def describe_difference(
    models: tuple[nn.Module, nn.Module], names: tuple[str, str]
) -> DifferingModule:
    """Return what a module is in both models, and which of its parameters are equal."""
    pairs = list(_pairs(*models))
    prefix = "" if names[0] == ROOT else names[0]
    own = [pair for pair in pairs if pair.owner == prefix and names[0] == names[1]]
    a, b = (_description(model, name) for model, name in zip(models, names, strict=True))
    return DifferingModule(
        names,
        (a, b),
        tuple(pair.name for pair in own if pair.relation == EQUAL),
        tuple(pair.name for pair in own if pair.relation == UNEQUAL),
        tuple(pair.name for pair in own if pair.relation == TRANSPOSED),
        len(pairs),
        sum(pair.relation == UNEQUAL for pair in pairs),
    )


def _description(model: nn.Module, name: str) -> str:
    path = "" if name == ROOT else name
    if isinstance(model, GraphModel):
        return describe_operators(model, path)
    module = model.get_submodule(path)
    return f"{class_name(module)}({module.extra_repr()})" if not module._modules else ""


def _pairs(a: nn.Module, b: nn.Module) -> Iterator[_Pair]:
    """The parameters and buffers that both models have, without modules that an exporter folded.

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
                yield _Pair(f"{name}.{key}" if name else key, name, relation)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    found = {
        **dict(module.named_parameters(recurse=False)),
        **dict(module.named_buffers(recurse=False)),
    }
    return {name: tensor.detach() for name, tensor in found.items() if tensor.ndim}


def _relation(a: Tensor, b: Tensor) -> str:
    """How two tensors relate; empty if their shapes have nothing to do with each other."""
    b = b.to(a.device)
    if a.shape == b.shape and torch.equal(a.to(b.dtype), b):
        return EQUAL
    if a.ndim == 2 and a.T.shape == b.shape and torch.equal(a.T.to(b.dtype), b):
        return TRANSPOSED
    return UNEQUAL if a.shape == b.shape else ""
