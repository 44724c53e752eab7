"""The result of comparing the layers of two models that did not run, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.result import Result

ADDED, REMOVED, MOVED = "added", "removed", "moved"
RENAMED, CHANGED = "renamed", "changed"
CHANGES = (ADDED, REMOVED, MOVED, RENAMED, CHANGED)


@dataclass(frozen=True)
class OwnTensor:
    """A parameter or buffer of a layer: its name, kind, shape and dtype.

    ``tied`` is the parameter of an earlier layer that is the same tensor; empty if there is none.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    tied: str = ""


@dataclass(frozen=True)
class LayerChange:
    """A layer that differs between A and B, or a subtree that only one of them has.

    Attributes:
        change: ``added``, ``removed``, ``moved`` (to another container or place), ``renamed`` (in
            the same container) or ``changed`` (class, arguments or tensors).
        names: its names in A and in B; empty where it is not.
        types: its classes; empty where it is not, or where a file does not know it.
        arguments: its constructor arguments, as its ``extra_repr()`` has them.
        tensors: for ``changed``, the parameters and buffers that differ, each as in A and in B;
            None where it is not.
        parameters: number of elements of the parameters: of the whole subtree for ``added`` and
            ``removed``, without layers of it that the other model has elsewhere; of the layer
            itself for the other changes.
        modules: number of layers in that subtree; 1 for the other changes.
        details: further differences, as sentences without a period.
        reason: what an exporter did to the layer, if that is known; it is then no difference.
    """

    change: str
    names: tuple[str, str]
    types: tuple[str, str]
    arguments: tuple[str, str]
    tensors: tuple[tuple[OwnTensor | None, OwnTensor | None], ...] = ()
    parameters: tuple[int, int] = (0, 0)
    modules: int = 1
    details: tuple[str, ...] = ()
    reason: str = ""

    @property
    def gained(self) -> int:
        """How many more parameters B has for it."""
        return self.parameters[1] - self.parameters[0]


@dataclass(frozen=True)
class ComparedModel:
    """One of the models: its name, its layers and parameters, and what is not known of it.

    Attributes:
        model: the spec of the model.
        modules: number of layers.
        parameters: number of elements of its parameters, a shared one counted once.
        buffers: number of elements of its buffers.
        format: the kind of file, such as ``ONNX``, if it does not have the arguments of layers;
            else empty.
        unknown: number of layers of which the file does not have the class.
    """

    model: str
    modules: int
    parameters: int
    buffers: int
    format: str = ""
    unknown: int = 0


@dataclass(frozen=True)
class StructureDiff(Result):
    """The layers that differ between two models.

    Attributes:
        a: the first model.
        b: the second model.
        changes: what differs, in the order of A; a layer can be both moved and changed.
        matched: number of selected layers of A that are in B.

    Example:
        >>> import hookscope
        >>> found = hookscope.diff("resnet18", "resnet34", structure=True, layers="layer1*")
        >>> [(row.change, row.names[1], row.gained) for row in found.changes]
        [('added', 'layer1.2', 73984)]
    """

    view = "structure_diff"

    a: ComparedModel
    b: ComparedModel
    changes: tuple[LayerChange, ...]
    matched: int

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {change}" for change, n in self.counts.items() if n)
        return f"<StructureDiff of {self.a.model} and {self.b.model}: {counts or 'the same'}>"

    @property
    def same(self) -> bool:
        """Whether nothing differs; what an exporter is known to have left out does not count."""
        return not any(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """The number of differences of each kind."""
        counts = Counter(row.change for row in self.changes if not row.reason)
        return {change: counts[change] for change in CHANGES}

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "same": self.same,
            "counts": self.counts,
            "matched": self.matched,
            "changes": [asdict(row) | {"gained": row.gained} for row in self.changes],
        }
