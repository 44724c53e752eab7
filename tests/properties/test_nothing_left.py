"""No function changes the model that it gets, the process, or the random generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from torch import nn

import hookscope
from hookscope.specs.commands import FUNCTIONS as ALL_FUNCTIONS
from tests.properties.conftest import Workplace
from tests.properties.minimal_requests import REQUESTS, SOURCES
from tests.properties.process_state import (
    changes,
    state_of_generators,
    state_of_model,
    state_of_process,
)
from tests.properties.python_calls import FUNCTIONS, called, written_in
from tests.properties.test_requests import name_of

CALLS = {pair: words for pair, words in REQUESTS.items() if pair[0] in FUNCTIONS}
LIVE = ("python", "scripted", "exported", "onnx")  # models that a module stands for
# Their requests name another model, or need the images that the file of the model prepares.
WITHOUT_MODULE = {("gradcheck", "python"), ("extract", "scripted"), ("extract", "onnx")}
WITHOUT_MODULE |= {("trace", "onnx")}


@cache
def module_of(source: str) -> nn.Module:
    """The model of a source, trained for one layer, with a gradient and a frozen parameter."""
    model = hookscope.load_model(SOURCES[source].spec).module
    named = dict(model.named_modules())
    if "norm" in named:
        named["norm"].train()
    parameters = list(model.parameters())
    if len(parameters) > 2:
        parameters[0].grad = torch.ones_like(parameters[0])
        parameters[1].requires_grad_(False)
    return model


@contextmanager
def unchanged(model: nn.Module | None = None) -> Iterator[None]:
    before = state_of_process(), state_of_generators()
    inner = {} if model is None else state_of_model(model)
    yield
    assert not changes(before[0], state_of_process())
    assert not changes(before[1], state_of_generators())
    assert not changes(inner, {} if model is None else state_of_model(model))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", CALLS, ids=name_of)
def test_a_function_leaves_everything_as_it_was(
    workplace: Workplace, pair: tuple[str, str]
) -> None:
    name, source = pair
    words = CALLS[pair]
    live = module_of(source) if source in LIVE and pair not in WITHOUT_MODULE else None
    written = written_in(words)
    if name == "cam":
        written = "out.safetensors"
    called(name, words, written, model=live)  # what is imported, or set up once, stays
    workplace.take_files()
    with unchanged(live):
        called(name, words, written, model=live)


def test_functions_without_a_command_leave_everything_as_it_was(workplace: Workplace) -> None:
    model = module_of("python")
    x = torch.rand(2, 1, 8, 8)
    calls = {
        "load": lambda: [hookscope.load(SOURCES[name].spec) for name in ("capture", "features")],
        "load_model": lambda: hookscope.load_model(SOURCES["python"].spec),
        "record": lambda: record(model, x),
        "watch": lambda: watch(model),
    }
    assert set(calls) == set(ALL_FUNCTIONS) - set(FUNCTIONS)
    for call in calls.values():
        call()
        workplace.take_files()
        with unchanged(model):
            call()


def record(model: nn.Module, x: torch.Tensor) -> None:
    mode = model.training
    model.eval()
    norm = model.get_submodule("norm")
    with hookscope.record(model, grads=True), torch.enable_grad():
        model(x)
    model.train(mode)
    norm.train()


def watch(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookscope.watch(model, optimizer, folder="watched"):
        pass


@pytest.mark.parametrize("command", ["show", "config", "completion", "help"])
def test_commands_without_a_function_leave_no_traces(workplace: Workplace, command: str) -> None:
    for pair, words in REQUESTS.items():
        if pair[0] == command:
            workplace.shell(*pair[:1], words)
            with unchanged():
                workplace.shell(command, words)
