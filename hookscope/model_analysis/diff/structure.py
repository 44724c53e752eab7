"""Comparison of the layers of two models, which do not run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from torch import Tensor, nn

from hookscope.file_analysis.record_matches import check_prefixes, replace_prefix
from hookscope.hooks.layers import Layer, layers_of, own_parameters
from hookscope.model_analysis.diff.export_rules import absent_layers, layers_with_changed_weights
from hookscope.model_analysis.diff.model_comparison import selected_names
from hookscope.model_analysis.diff.tree_matches import (
    Matches,
    TreeNode,
    match_trees,
    may_be_same,
    out_of_order,
)
from hookscope.model_analysis.model_tree import load_modules
from hookscope.results.structure_diff import (
    ADDED,
    CHANGED,
    MOVED,
    REMOVED,
    RENAMED,
    ComparedModel,
    LayerChange,
    OwnTensor,
    StructureDiff,
)
from hookscope.sources.onnx.graph_modules import GraphModel
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.diff_sides import label_errors
from hookscope.specs.module_names import parent_of

_UNKNOWN = ("Module", "Graph")  # classes of layers of files that do not have them
_IN_ORDER = ("", "TorchScript")  # what has layers in the order of their definition


@dataclass(frozen=True)
class _Side:
    """One of the models, and its layers by name."""

    module: nn.Module
    spec: str
    nodes: dict[str, TreeNode]

    @property
    def format(self) -> str:
        """The kind of file, if it does not have the arguments of layers."""
        return str(getattr(self.module, "_hookscope_format", ""))

    def described(self) -> ComparedModel:
        return ComparedModel(
            self.spec,
            len(self.nodes),
            sum(parameter.numel() for parameter in self.module.parameters()),
            sum(buffer.numel() for buffer in self.module.buffers()),
            self.format,
            sum(not node.type for node in self.nodes.values()),
        )


def compare_structures(options: DiffRequest) -> StructureDiff:
    """Compare the layers of two models."""
    loaded = []
    for number, request in enumerate(options.requests):
        with label_errors(number):
            loaded.append(load_modules(request.model, meta=True))
    prefixes = options.prefixes
    check_prefixes(prefixes, *([one.name for one in layers_of(side.module)] for side in loaded))
    a = _Side(loaded[0].module, loaded[0].spec, _read_nodes(loaded[0].module, prefixes))
    b = _Side(loaded[1].module, loaded[1].spec, _read_nodes(loaded[1].module, {}))
    if a.format or b.format:
        for node in chain(a.nodes.values(), b.nodes.values()):
            node.arguments = ""
    partners = match_trees(list(a.nodes.values()), list(b.nodes.values()))
    names = selected_names([(side.module, side.spec) for side in (a, b)], options.selection)
    chosen = {
        node
        for side, of_side in zip((a, b), names, strict=True)
        for name, node in side.nodes.items()
        if name in of_side
    }
    matched = sum(node in partners for node in a.nodes.values() if node in chosen)
    changes = _TreeChanges(a, b, partners, chosen).listed()
    return StructureDiff(a.described(), b.described(), tuple(changes), matched)


def _read_nodes(module: nn.Module, prefixes: Mapping[str, str]) -> dict[str, TreeNode]:
    """The layers of a model by name, each with its parent and children."""
    nodes: dict[str, TreeNode] = {}
    owners: dict[int, str] = {}  # the first name of each parameter
    for layer in layers_of(module):
        own = own_parameters(layer.module)
        new = {id(tensor): tensor.numel() for tensor in own.values() if id(tensor) not in owners}
        for name, tensor in own.items():
            owners.setdefault(id(tensor), f"{layer.name}.{name}")
        above = nodes.get(parent_of(layer.name)) if nodes else None
        node = nodes[layer.name] = TreeNode(
            layer.name,
            replace_prefix(layer.name, prefixes),
            _known_type(layer.module, layer.type),
            layer.module.extra_repr(),
            tuple(_own_tensors(layer, owners)),
            sum(new.values()),
            tuple(x for x in layer.aliases if above is None or parent_of(x) not in above.aliases),
            above,
        )
        if above is not None:
            above.children.append(node)
    return nodes


def _own_tensors(layer: Layer, owners: Mapping[int, str]) -> Iterator[OwnTensor]:
    for name, tensor in own_parameters(layer.module).items():
        first = owners[id(tensor)]
        tied = "" if first == f"{layer.name}.{name}" else first
        yield OwnTensor(name, "parameter", tuple(tensor.shape), _dtype_text(tensor), tied)
    for name, buffer in layer.module.named_buffers(recurse=False):
        yield OwnTensor(name, "buffer", tuple(buffer.shape), _dtype_text(buffer))


def _dtype_text(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _known_type(module: nn.Module, name: str) -> str:
    """The class of a layer; empty if a file has only its operators, or nothing."""
    if not hasattr(module, "_hookscope_format"):
        return name
    return "" if name in (*_UNKNOWN, *getattr(module, "_onnx_operators", ())) else name


class _TreeChanges:
    """The differences between two trees whose layers are matched."""

    def __init__(self, a: _Side, b: _Side, partners: Matches, chosen: Collection[TreeNode]) -> None:
        self._a, self._b, self._partners, self._chosen = a, b, partners, chosen
        self._ordered = {a.format, b.format} <= set(_IN_ORDER)
        self._misplaced: dict[TreeNode, set[TreeNode]] = {}  # by their parents in A
        self._is_onnx = "ONNX" in (a.format, b.format)
        self._reasons: tuple[dict[str, str], dict[str, str]] = ({}, {})
        self._changed_weights: set[str] = set()
        for number, (side, other) in enumerate(((a, b), (b, a))):
            if isinstance(other.module, GraphModel):
                self._reasons[number].update(absent_layers(side.module, other.module))
                self._changed_weights |= layers_with_changed_weights(other.module)

    def listed(self) -> list[LayerChange]:
        """Return the changes in the order of A; an added layer follows what is before it in B."""
        order = {node: n for n, node in enumerate(self._a.nodes.values())}
        found = [(n, change) for node, n in order.items() for change in self._of_a(node)]
        before = -1
        for node in self._b.nodes.values():
            if node in self._partners:
                before = order[self._partners[node]]
            elif self._is_top(node):
                found.append((before, self._alone(node, 1)))
        return [change for _, change in sorted(found, key=lambda pair: pair[0])]

    def _of_a(self, node: TreeNode) -> Iterator[LayerChange]:
        other = self._partners.get(node)
        if other is None:
            if self._is_top(node):
                yield self._alone(node, 0)
        elif node in self._chosen or other in self._chosen:
            yield from self._moved(node, other)
            yield from self._changed(node, other)

    def _is_top(self, node: TreeNode) -> bool:
        """Whether a layer is reported as added or removed, and not a layer that it is in."""
        if node not in self._chosen:
            return False
        above = node.parent
        while above is not None and above not in self._partners:
            if above in self._chosen:
                return False
            above = above.parent
        return True

    def _alone(self, node: TreeNode, side: int) -> LayerChange:
        """The change of a subtree that only one side has."""
        alone = [x for x in node.subtree if x not in self._partners]
        parameters = sum(x.own_parameters for x in alone)

        def placed(text: str) -> tuple[str, str]:
            return ("", text) if side else (text, "")

        return LayerChange(
            ADDED if side else REMOVED,
            *(placed(node.name), placed(node.type), placed(node.arguments)),
            parameters=(0, parameters) if side else (parameters, 0),
            modules=len(alone),
            reason=self._reasons[side].get(node.name, ""),
        )

    def _moved(self, a: TreeNode, b: TreeNode) -> Iterator[LayerChange]:
        """The change of place or name of a layer that both have, if there is one."""
        above_a, above_b = a.parent, b.parent
        together = above_a is above_b is None
        misplaced, details = False, []
        if above_a is not None and above_b is not None:
            together = self._partners.get(above_a) is above_b
            if together and above_a not in self._misplaced:
                self._misplaced[above_a] = out_of_order(above_a, above_b, self._partners)
            misplaced = self._ordered and together and a in self._misplaced[above_a]
        if together and a.last == b.last:
            if not misplaced:
                return
            assert above_a is not None and above_b is not None
            places = above_a.children.index(a) + 1, above_b.children.index(b) + 1
            details = [f"from place {places[0]} to {places[1]} in its parent"]
        elif a.mapped == b.name:
            return
        change = MOVED if misplaced or not together else RENAMED
        parameters = sum(x.own_parameters for x in a.subtree)
        yield LayerChange(
            *(change, (a.name, b.name), (a.type, b.type), (a.arguments, b.arguments)),
            parameters=(parameters, parameters),
            details=tuple(details),
        )

    def _changed(self, a: TreeNode, b: TreeNode) -> Iterator[LayerChange]:
        """The change of the class, the arguments or the tensors of a layer, if there is one."""
        details = []
        for one, other, side in ((a, b, "A"), (b, a, "B")):
            if len(one.aliases) > len(other.aliases) and not (self._a.format or self._b.format):
                details.append(f"also called {', '.join(one.aliases)} in {side} alone")
        tensors = tuple(self._differing_tensors(a, b))
        if may_be_same(a, b) and a.arguments == b.arguments and not tensors and not details:
            return
        yield LayerChange(
            *(CHANGED, (a.name, b.name), (a.type, b.type), (a.arguments, b.arguments), tensors),
            parameters=(a.own_parameters, b.own_parameters),
            details=tuple(details),
        )

    def _differing_tensors(
        self, a: TreeNode, b: TreeNode
    ) -> Iterator[tuple[OwnTensor | None, OwnTensor | None]]:
        if self._changed_weights & {a.name, b.name}:
            return
        of_a, of_b = ({tensor.name: tensor for tensor in node.tensors} for node in (a, b))
        # An ONNX file names tensors by their roles, and calls all of them parameters.
        names = of_a.keys() & of_b.keys() if self._is_onnx else of_a.keys() | of_b.keys()
        for name in (name for name in dict.fromkeys((*of_a, *of_b)) if name in names):
            pair = of_a.get(name), of_b.get(name)
            if self._identity(pair[0]) != self._identity(pair[1]):
                yield pair

    def _identity(self, tensor: OwnTensor | None) -> object:
        """What of a tensor is the same if nothing changed."""
        if tensor is None:
            return None
        if self._is_onnx:  # its exporter transposes weights
            return sorted(tensor.shape), tensor.dtype
        known = not (self._a.format or self._b.format)
        return tensor.kind, tensor.shape, tensor.dtype, known and bool(tensor.tied)
