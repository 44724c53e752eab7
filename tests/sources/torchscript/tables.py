"""All examples, by the file that they are methods or submodules of."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import hookscope
from tests.sources.torchscript import expressions
from tests.sources.torchscript.examples import Example, Table, program_of, quietly, saved
from tests.sources.torchscript.programs_classes import CLASSES
from tests.sources.torchscript.programs_containers import CONTAINERS
from tests.sources.torchscript.programs_control import CONTROL
from tests.sources.torchscript.programs_modules import MODULES
from tests.sources.torchscript.programs_traced import TRACED
from tests.sources.torchscript.programs_types import TYPES

TABLES: dict[str, Table] = {
    "control": CONTROL,
    "containers": CONTAINERS,
    "types": TYPES,
    "classes": CLASSES,
    "modules": MODULES,
    "traced": TRACED,
}
EXAMPLES: dict[str, dict[str, Example]] = {
    "expressions": expressions.EXPRESSIONS,
    **{name: table.examples for name, table in TABLES.items()},
}


def write(table: str, path: Path, *, only: str = "", beside: bool = False) -> Path:
    """Save the file of a table, or of one example.

    ``beside`` adds a module: without one, the operators of the graph become modules.
    """
    with quietly():
        if table == "expressions":
            module = program_of(expressions.SOURCE, path.parent)()
        else:
            module = TABLES[table].whole(only)
        if beside:
            module.add_module("beside", nn.Identity())
        return saved(module, path)


def both(file: Path) -> tuple[nn.Module, nn.Module]:
    """A file as PyTorch opens it, and as hookscope does."""
    with quietly():
        return torch.jit.load(file).eval(), hookscope.load_model(file).module


def opened(table: str, folder: Path, *, beside: bool = False) -> tuple[nn.Module, nn.Module]:
    """The file of a table as both open it."""
    return both(write(table, folder / "model.pt", beside=beside))
