"""The tree of a model's named modules, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.receptive_field import ReceptiveField
from hookscope.results.result import Result
from hookscope.specs.patterns import ROOT


@dataclass(frozen=True)
class LayerRun:
    """Calls, output shapes and FLOPs of a module in one forward pass.

    ``outputs`` has one text per output tensor of the first call (``1x64x112x112``). ``flops``
    includes all calls and all modules inside the module; it is None where none are counted, as in
    an ONNX file. A module that did not run has 0 calls. ``other_outputs`` has one text for each set
    of shapes that later calls returned and the first one did not.
    """

    calls: int
    outputs: tuple[str, ...]
    flops: int | None
    other_outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleNode:
    """One module of the tree.

    ``own_parameters`` is the number of elements of the module's own parameters, ``parameters`` that
    of its whole subtree, with each shared parameter counted once. ``trainable`` is the part of
    ``parameters`` that requires grad. ``bytes`` is the size of the subtree's parameters and
    buffers. ``arguments`` is the module's ``extra_repr()``. ``source`` is the file and line of its
    ``forward``; for a scripted module, of the code it was made from, if its file has that. ``note``
    is a remark on a module from a file. ``field`` is the receptive field of the output.
    """

    name: str
    type: str
    arguments: str
    depth: int
    leaf: bool
    own_parameters: int
    parameters: int
    trainable: int
    buffers: int
    bytes: int
    aliases: tuple[str, ...] = ()
    source: str = ""
    run: LayerRun | None = None
    note: str = ""
    field: ReceptiveField | None = None


@dataclass(frozen=True)
class AbsentModule:
    """A module of the exported model that is not in its file, and what became of it."""

    name: str
    reason: str


@dataclass(frozen=True)
class ModuleTree(Result):
    """The modules of ``model`` in definition order, the model itself first.

    ``modules`` may be a selection of the modules; ``total`` always describes the whole model.
    ``execution`` has the names of the modules that ran in a forward pass, in the order of their
    first calls; it is empty without a pass. ``absent`` has the modules that an exporter removed.
    """

    view = "module_tree"

    model: str
    modules: tuple[ModuleNode, ...]
    total: ModuleNode
    execution: tuple[str, ...] = ()
    absent: tuple[AbsentModule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return ``model``, ``total`` (of the whole model) and ``modules``, with all fields.

        ``absent`` has the modules that an exporter removed from the file, if there are any.
        """
        modules = [asdict(node) for node in self.modules]
        parts = {"model": self.model, "total": asdict(self.total), "modules": modules}
        if self.absent:
            parts["absent"] = [asdict(module) for module in self.absent]
        return parts

    def mermaid(self) -> str:
        """Return the modules as a graph for Mermaid, as ``hookscope tree --mermaid`` prints it.

        Example:
            >>> import hookscope
            >>> print(hookscope.tree("alexnet", layers=["features", "avgpool"]).mermaid())
            flowchart LR
              m0["features<br/>Sequential"]
              m1["avgpool<br/>AdaptiveAvgPool2d(6x6)"]
        """
        return str(self._shown("text.module_graph", "mermaid_text"))

    def dot(self) -> str:
        """Return the modules as a graph for Graphviz, as ``hookscope tree --dot`` prints it."""
        return str(self._shown("text.module_graph", "dot_text"))

    def __repr__(self) -> str:
        whole = any(node.name == ROOT for node in self.modules)
        modules = f"{len(self.modules)} modules" if whole else f"{len(self.modules)} of its modules"
        return f"<ModuleTree of {self.model}: {modules}, {self.total.parameters:,} parameters>"
