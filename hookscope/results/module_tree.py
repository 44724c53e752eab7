"""The tree of a model's named modules, as data."""

from __future__ import annotations

from dataclasses import dataclass

from hookscope.results.notebook import NotebookResult

ROOT = "."  # the name of the model itself


@dataclass(frozen=True)
class LayerRun:
    """Calls, output shapes and FLOPs of a module in one forward pass.

    ``outputs`` has one text per output tensor of the first call (``1x64x112x112``). ``flops``
    includes all calls and all modules inside the module. A module that did not run has 0 calls.
    """

    calls: int
    outputs: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class ModuleNode:
    """One module of the tree.

    ``own_parameters`` is the number of elements of the module's own parameters, ``parameters`` that
    of its whole subtree, with each shared parameter counted once. ``trainable`` is the part of
    ``parameters`` that requires grad. ``bytes`` is the size of the subtree's parameters and
    buffers. ``arguments`` is the module's ``extra_repr()``. ``source`` is the file and line of its
    ``forward``; for a scripted module, of the code it was made from, if its file has that.
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


@dataclass(frozen=True)
class ModuleTree(NotebookResult):
    """The modules of ``model`` in definition order, the model itself first.

    ``nodes`` may be a selection of the modules; ``total`` always describes the whole model.
    """

    model: str
    nodes: tuple[ModuleNode, ...]
    total: ModuleNode

    def __repr__(self) -> str:
        whole = any(node.name == ROOT for node in self.nodes)
        modules = f"{len(self.nodes)} modules" if whole else f"{len(self.nodes)} of its modules"
        return f"<ModuleTree of {self.model}: {modules}, {self.total.parameters:,} parameters>"
