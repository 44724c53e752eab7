"""All examples, by the file that they are methods or submodules of."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

import hookscope
from tests.sources.torchscript import expressions
from tests.sources.torchscript.examples import Example, program_of, quietly, saved
from tests.sources.torchscript.programs_classes import CLASSES
from tests.sources.torchscript.programs_containers import CONTAINERS
from tests.sources.torchscript.programs_control import CONTROL
from tests.sources.torchscript.programs_library import LIBRARY
from tests.sources.torchscript.programs_modules import MODULES
from tests.sources.torchscript.programs_types import TYPES

EXAMPLES: dict[str, dict[str, Example]] = {
    "expressions": expressions.EXPRESSIONS,
    "control": CONTROL.examples,
    "containers": CONTAINERS.examples,
    "types": TYPES.examples,
    "classes": CLASSES.examples,
    "modules": MODULES.examples,
    "library": LIBRARY.examples,
}


_MAKERS: dict[str, Callable[[Path], nn.Module]] = {
    "expressions": lambda folder: program_of(expressions.SOURCE, folder)(),
    "control": lambda _: CONTROL.whole(),
    "containers": lambda _: CONTAINERS.whole(),
    "types": lambda _: TYPES.whole(),
    "classes": lambda _: CLASSES.whole(),
    "modules": lambda _: MODULES.whole(),
    "library": lambda _: LIBRARY.whole(),
}


def write(table: str, path: Path, *, beside: bool = False) -> Path:
    """Save the file of a table; ``beside`` adds a module, as without one operators are modules."""
    with quietly():
        module = _MAKERS[table](path.parent)
        if beside:
            module.add_module("beside", nn.Identity())
        return saved(module, path)


@cache
def opened(table: str, *, beside: bool = False) -> tuple[nn.Module, nn.Module]:
    """The file of a table as PyTorch opens it, and as hookscope does."""
    with tempfile.TemporaryDirectory() as folder, quietly():
        file = write(table, Path(folder) / "model.pt", beside=beside)
        return torch.jit.load(file).eval(), hookscope.load_model(file).module
