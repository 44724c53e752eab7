"""The tree of the names in a set of weights, with the size of each branch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blake3 import blake3

from hookscope.errors import LayerError
from hookscope.files.hashes import HASH_THREADS
from hookscope.files.progress_types import Progress
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.results.result import Result
from hookscope.specs.patterns import ROOT, compile_pattern, near_patterns, split_exclusions
from hookscope.stores.weights.weight_set import MOST_TENSORS, WeightSet, WeightTensor

_MOST_PARTS = 32  # of a name; the rest of a longer one is its last part
# The limit of a whole tree, whose names could have far more branches and text than their file.
# Beyond it, names are not divided.
_MOST_NODES = 2 * MOST_TENSORS
_MOST_TEXT = 1 << 26  # characters


@dataclass(frozen=True)
class DtypeTotal:
    """The tensors of one dtype; tied ones are counted once in entries and bytes."""

    dtype: str
    tensors: int
    entries: int
    nbytes: int


@dataclass(frozen=True)
class WeightNode:
    """A tensor, or a part of a name that several tensors share."""

    name: str
    depth: int
    tensor: WeightTensor | None
    tensors: int
    parameters: int
    buffers: int
    nbytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class WeightTree(Result):
    """The names of a set of weights as a tree.

    Attributes:
        weights: the set.
        modules: all nodes or some of them, each after its branch; that of all tensors first.
        separator: what separates the parts of names.
        total: the node of all tensors.
        dtypes: totals by dtype, the largest first.
    """

    view = "weight_tree"

    weights: WeightSet
    modules: tuple[WeightNode, ...]
    separator: str
    total: WeightNode
    dtypes: tuple[DtypeTotal, ...]

    @classmethod
    def of(
        cls,
        weights: WeightSet,
        layers: Iterable[str] = (),
        depth: int | None = None,
        leaves: bool = False,
    ) -> WeightTree:
        """Return the tree of a set of weights.

        The pattern of a branch stands for all inside it; only that of the whole set, ``.``, for its
        line alone. ``depth`` is the largest number of parts of a name; 0 is the whole set.
        """
        separator = _separator(weights.tensors)
        nodes = _nodes(weights, separator)
        total = nodes[0]
        tree = cls(weights, tuple(nodes), separator, total, _dtype_totals(weights))
        return tree.select(layers, depth, leaves) if layers or leaves or depth is not None else tree

    def select(self, layers: Iterable[str], depth: int | None, leaves: bool) -> WeightTree:
        """Return the tree with only some of its nodes; see ``of``."""
        names = [node.name for node in self.modules]
        included, excluded = split_exclusions(layers)
        chosen = set[str]().union(*(self._matching(p, names) for p in included))
        chosen = chosen if included else set(names)
        chosen.difference_update(*(self._matching(pattern, names) for pattern in excluded))
        nodes = tuple(
            node
            for node in self.modules
            if node.name in chosen
            and (depth is None or node.depth <= depth)
            and (node.tensor is not None or not leaves)
        )
        if not nodes:
            raise LayerError(
                f"Nothing in {self.weights.label} matches all of the filters.",
                f"{cite_command('hookscope', 'tree', self.weights.label)} lists all names.",
            )
        return replace(self, modules=nodes)

    def _matching(self, pattern: str, names: Sequence[str]) -> set[str]:
        test: Callable[[str], bool] = compile_pattern(pattern)
        matches: set[str] = set()
        for name in names:  # a branch comes before what is inside it
            above, separator, _ = name.rpartition(self.separator)
            if test(name) or (separator and above in matches):
                matches.add(name)
        if matches:
            return matches
        label = self.weights.label
        hint = did_you_mean(pattern, near_patterns(pattern, names) or names)
        raise LayerError(
            f"No name in {label} matches {pattern!r}.",
            f"{hint} {cite_command('hookscope', 'tree', label)} lists them all.".strip(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the file, totals, metadata, and the selected names as ``modules``."""
        weights = self.weights
        return {
            "weights": weights.label,
            "format": weights.kind,
            "total": asdict(self.total),
            "dtypes": [asdict(total) for total in self.dtypes],
            "modules": [asdict(node) for node in self.modules],
            "metadata": dict(weights.metadata),
            "notes": list(weights.notes),
        }

    def __repr__(self) -> str:
        return (
            f"<WeightTree of {self.weights.label}: {len(self.modules)} names,"
            f" {self.total.parameters:,} parameters>"
        )


class _Branch:
    """A node while the tree is built."""

    __slots__ = (
        *("buffers", "children", "depth", "dtypes", "name", "nbytes", "parameters", "tensor"),
        "tensors",
    )

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.children: dict[str, _Branch] = {}
        self.tensor: WeightTensor | None = None
        self.tensors = self.parameters = self.buffers = self.nbytes = 0
        self.dtypes: dict[str, None] = {}

    def node(self) -> WeightNode:
        return WeightNode(
            self.name,
            self.depth,
            self.tensor,
            self.tensors,
            self.parameters,
            self.buffers,
            self.nbytes,
            tuple(self.dtypes),
        )


def _nodes(weights: WeightSet, separator: str) -> list[WeightNode]:
    """All nodes, each before what is inside it."""
    root = _Branch(ROOT, 0)
    made = characters = 0
    for tensor in weights.tensors.values():
        numel, nbytes = (0, 0) if tensor.tied_to else (tensor.numel, tensor.nbytes)
        is_buffer = tensor.is_buffer
        branch, start = root, 0
        is_full = made > _MOST_NODES or characters > _MOST_TEXT
        parts = [tensor.name] if is_full else tensor.name.split(separator, _MOST_PARTS - 1)
        for depth, part in enumerate(("", *parts)):
            if depth:
                start += len(part) + (len(separator) if depth > 1 else 0)
                if part not in branch.children:
                    branch.children[part] = _Branch(tensor.name[:start], depth)
                    made += 1
                    characters += start
                branch = branch.children[part]
            branch.tensors += 1
            if is_buffer:
                branch.buffers += numel
            else:
                branch.parameters += numel
            branch.nbytes += nbytes
            branch.dtypes[tensor.dtype] = None
        branch.tensor = tensor
    nodes = []
    waiting = [root]
    while waiting:
        branch = waiting.pop()
        nodes.append(branch.node())
        waiting.extend(reversed(branch.children.values()))
    return nodes


def _separator(names: Iterable[str]) -> str:
    """What separates the parts of names: a slash, as in TensorFlow and JAX, if no name has dots."""
    joined = "\n".join(names)
    return "/" if "." not in joined and "/" in joined else "."


def _dtype_totals(weights: WeightSet) -> tuple[DtypeTotal, ...]:
    totals: dict[str, DtypeTotal] = {}
    for tensor in weights.tensors.values():
        before = totals.get(tensor.dtype, DtypeTotal(tensor.dtype, 0, 0, 0))
        counted = not tensor.tied_to
        totals[tensor.dtype] = DtypeTotal(
            tensor.dtype,
            before.tensors + 1,
            before.entries + tensor.numel * counted,
            before.nbytes + tensor.nbytes * counted,
        )
    return tuple(sorted(totals.values(), key=lambda total: (-total.nbytes, total.dtype)))


@dataclass(frozen=True)
class WeightHashes(Result):
    """The hashes of a set of weights in hexadecimal.

    Attributes:
        label: of the weights, or the spec of the model.
        architecture: equal for equal names and shapes, whatever the dtypes.
        weights: equal for equal names, shapes, dtypes and values.
    """

    view = "weight_tree.HASHES"

    label: str
    architecture: str
    weights: str

    def __repr__(self) -> str:
        return (
            f"<WeightHashes of {self.label}: architecture {self.architecture[:8]}...,"
            f" weights {self.weights[:8]}...>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def hash_weights(weights: WeightSet, progress: Progress | None = None) -> WeightHashes:
    """Return both hashes of a set of weights; all values are read once."""
    architecture, values = blake3(), blake3(max_threads=HASH_THREADS)
    total = sum(tensor.nbytes for tensor in weights.tensors.values())
    done = 0
    for name in sorted(weights.tensors):
        tensor = weights.tensors[name]
        architecture.update(_line(name, list(tensor.shape)))
        values.update(_line(name, tensor.dtype, list(tensor.shape)))
        for block in weights.stored(name):
            values.update(block.data)
            done += len(block)
            if progress is not None:
                progress(done, total)
    return WeightHashes(weights.label, architecture.hexdigest(), values.hexdigest())


def _line(*values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
