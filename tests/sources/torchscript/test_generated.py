"""Made-up programs do as ordinary modules what they do as TorchScript, errors included."""

from __future__ import annotations

import importlib.util
import linecache
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from torch import nn

import hookscope
from tests.sources.torchscript.examples import Example, difference, outcome, quietly, saved
from tests.sources.torchscript.generated import programs

Call = tuple[Any, ...]

# A program is short already, and to make one shorter would take minutes.
WITHOUT_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]
FEW = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,  # the same programs at each run: to find new ones is the other test's part
    suppress_health_check=list(HealthCheck),
    phases=WITHOUT_SHRINKING,
)
MANY = settings(FEW, max_examples=5000, derandomize=False)

INTS = st.one_of(st.integers(-20, 20), st.sampled_from([2**62, -(2**62), 2**63 - 1]))
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e308, math.inf, math.nan, 3.0])
CALLS = st.tuples(
    INTS,
    INTS,
    FLOATS,
    FLOATS,
    st.booleans(),
    st.sampled_from(["", "a", "ban ana", "Zaé"]),
    st.lists(st.integers(-3, 5), max_size=5),
    st.sampled_from([torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.0, math.inf, math.nan])]),
)


def program_of(source: str, folder: Path) -> type[nn.Module]:
    """The class that a source defines, from a file, as TorchScript reads it anew."""
    path = folder / "program.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("generated_program", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated_program"] = module
    with quietly():
        spec.loader.exec_module(module)
    found: type[nn.Module] = module.Program
    return found


def check(source: str, call: Call, folder: Path) -> None:
    linecache.clearcache()
    kind = program_of(source, folder)
    try:
        file = saved(Example(kind, (call,)), folder / "program.pt")
        with quietly():
            theirs = torch.jit.load(file)
    except (
        RuntimeError
    ):  # it is no TorchScript, or PyTorch cannot read what it wrote: 1e16 as an int
        reject()
    ours = hookscope.load_model(file).module
    # One call alone: PyTorch makes a constant of ``[1, -2]``, and what a call does to it stays.
    with quietly(), torch.jit.optimized_execution(False):
        expected = outcome(theirs, call)
    if "INTERNAL ASSERT FAILED" in str(expected.error):
        reject()  # PyTorch loses integers in many loops now and then, and says that it is a bug
    found = difference(expected, outcome(ours, call))
    assert not found, f"{found}\n{source}"


@given(source=programs(), call=CALLS)
@FEW
def test_a_program_does_what_it_does_as_torchscript(
    tmp_path_factory: pytest.TempPathFactory, source: str, call: Call
) -> None:
    check(source, call, tmp_path_factory.getbasetemp())


@pytest.mark.exhaustive
@given(source=programs(), call=CALLS)
@MANY
def test_many_programs_do_what_they_do_as_torchscript(
    tmp_path_factory: pytest.TempPathFactory, source: str, call: Call
) -> None:
    check(source, call, tmp_path_factory.getbasetemp())
