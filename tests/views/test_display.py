"""Every result is printed by the view that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from typing import Any

import pytest

import hookscope
from hookscope.errors import RequestError
from hookscope.hooks.capture import Capture
from hookscope.results.health import Health
from hookscope.results.result import Result
from hookscope.views import display
from hookscope.views.ablation import ablation_lines
from hookscope.views.capture import capture_lines
from hookscope.views.capture_diff import diff_lines
from hookscope.views.display import View
from hookscope.views.grad_check import gradcheck_lines
from hookscope.views.grads import grads_lines
from hookscope.views.health import check_lines
from hookscope.views.module_tree import tree_lines
from hookscope.views.step import step_lines
from hookscope.views.stored_tensors import tensor_lines
from hookscope.views.text.text_table import PIPE, TextOptions
from hookscope.views.trace import trace_lines
from tests.views.text import samples


def of_command(command: str, make: Callable[[], Capture]) -> Capture:
    capture = make()
    capture.metadata["command"] = command
    return capture


def healthy() -> Health:
    return Health((), (), {}, {}, {})


RESULTS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "ablate": (samples.ablation, ablation_lines),
    "capture": (samples.outputs, capture_lines),
    "check": (healthy, check_lines),
    "diff": (samples.compared, diff_lines),
    "gradcheck": (samples.checked, gradcheck_lines),
    "grads": (lambda: of_command("grads", samples.gradients), grads_lines),
    "step": (lambda: of_command("step", samples.stepped), step_lines),
    "trace": (samples.trace, trace_lines),
    "tree": (samples.small_tree, tree_lines),
}


@pytest.mark.parametrize("command", RESULTS)
@pytest.mark.parametrize("options", [PIPE, TextOptions(60, ascii=True, verbose=True)])
def test_a_result_has_the_text_of_its_command(command: str, options: TextOptions) -> None:
    make, view = RESULTS[command]
    result = make()
    assert display.text(result, options) == view(result, options) != []


@pytest.mark.parametrize("command", RESULTS)
def test_a_result_has_a_document_of_its_command(command: str) -> None:
    document = display.document(RESULTS[command][0](), "a.file")
    assert list(document)[:2] == ["schema", "command"]
    assert document["command"] == command
    assert document.get("file", "a.file") == "a.file"


OPENED = [f"sample_models/{name}" for name in ("run", "digits.safetensors", "five.safetensors")]


@pytest.mark.parametrize(
    "make", [*(make for make, _ in RESULTS.values()), *(partial(hookscope.load, x) for x in OPENED)]
)
def test_a_result_is_saved_as_json(make: Callable[[], Result], tmp_path: Path) -> None:
    result, file = make(), tmp_path / "x.json"
    assert Result.save(result, file) == file.stat().st_size
    saved = json.loads(file.read_text())
    assert {*saved} == {*result.to_json(), "hookscope", "schema"}
    with pytest.raises(RequestError, match="unsupported format"):
        Result.save(result, tmp_path / "x.txt")


def test_a_view_of_a_tensor_has_a_text() -> None:
    view = samples.looked()
    assert display.text(view, PIPE) == tensor_lines(view, PIPE)


def test_every_result_names_a_view_that_exists() -> None:
    for module in iter_modules(hookscope.__path__, "hookscope."):
        if module.ispkg and module.name not in ("hookscope.views",):
            for inner in walk_packages(import_module(module.name).__path__, f"{module.name}."):
                import_module(inner.name)
    named = {type.view for type in subclasses(Result) if isinstance(getattr(type, "view", 0), str)}
    assert len(named) > 25
    assert not [type for type in subclasses(Result) if type.to_json is Result.to_json]
    for name in named:
        assert isinstance(display.find_view(name), View), name


def subclasses(type: type) -> Iterator[type]:
    for child in type.__subclasses__():
        yield child
        yield from subclasses(child)


def test_a_view_without_a_document_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="TensorView has no view as a JSON document"):
        display.document(samples.looked())
