"""The named-module tree of a model as data, which nothing needs torch to read."""

from __future__ import annotations

from dataclasses import dataclass

ROOT = "."  # the name of the model itself


@dataclass(frozen=True)
class LayerRun:
    """What one forward pass showed of a module.

    ``outputs`` holds one text per output tensor of the first call (``1x64x112x112``); ``flops``
    counts all calls and everything inside the module. A module that did not run has 0 calls.
    """

    calls: int
    outputs: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class ModuleNode:
    """One module of the tree.

    ``own_parameters`` counts the entries of the parameters that the module itself holds,
    ``parameters`` those of its whole subtree, each shared parameter once; ``trainable`` is the part
    of ``parameters`` that requires grad. ``bytes`` is the subtree's parameters and buffers.
    ``arguments`` is the module's own ``extra_repr()``. ``source`` is the file and line of its
    ``forward``; of a scripted module that of the code it was made from, as its file tells it.
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
class ModuleTree:
    """The modules of ``model`` in definition order, the model itself first.

    ``nodes`` may be narrowed to some of the modules; ``total`` always describes the whole model.
    """

    model: str
    nodes: tuple[ModuleNode, ...]
    total: ModuleNode
