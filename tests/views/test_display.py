"""Every result names a view that exists, and has a strict document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from typing import Any

import pytest
import torch

import hookscope
from hookscope.errors import RequestError
from hookscope.escapes import encodable
from hookscope.files import strict_json
from hookscope.hooks.capture import Capture
from hookscope.results.result import Result
from hookscope.views import display
from hookscope.views.display import View, make_document
from hookscope.views.models import models_document
from hookscope.views.text.text_table import PIPE
from tests.views.text import samples
from tests.views.text.samples import SAMPLES


def strict(value: dict[str, Any]) -> Any:
    """Parse as a strict reader would: NaN and Infinity are not JSON."""
    text = strict_json.dumps(value, indent=2)
    assert text.isascii()
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("command", SAMPLES)
def test_a_result_has_a_document_of_its_command_which_is_strict(command: str) -> None:
    document = strict(display.document(SAMPLES[command](), "a.file"))
    assert list(document)[:2] == ["schema", "command"]
    assert (document["schema"], document["command"]) == (1, command)
    assert document.get("file", "a.file") == "a.file"
    again = strict(display.document(SAMPLES[command](), "a.file"))
    assert json.dumps(again) == json.dumps(document)


def test_documents_of_captures_have_records_coverage_ratio_and_mark() -> None:
    data = strict(display.document(samples.outputs()))
    record = data["records"][2]
    assert (record["shape"], record["stats"]["nan"], record["stats"]["inf"]) == (
        [1, 16, 4, 4],
        2,
        1,
    )
    assert data["coverage"]["matched"] == 5
    assert data["coverage"]["not_executed"][0]["module"] == "layer3.0.blocks"
    assert data["top"][0][0]["label"] == samples.LABELS[0]
    data = strict(display.document(samples.gradients()))
    by_key = {record["key"]: record for record in data["records"]}
    assert by_key["layer1.0.conv2/output.grad"]["mark"] == "vanishing"
    weight = by_key["fc/weight.grad"]
    assert weight["ratio"] == weight["stats"]["norm"] / 2
    assert data["absent"][0]["reason"] == "frozen"


def test_tree_document_has_every_field_of_every_module() -> None:
    data = strict(display.document(samples.with_run(samples.small_tree())))
    first = next(m for m in data["modules"] if m["name"] == "block.first")
    ran = {"calls": 2, "outputs": ["1x8", "8x1x2"], "flops": 236_027_904, "other_outputs": []}
    assert (first["aliases"], first["run"]) == (["head"], ran)
    assert data["total"]["parameters"] == 600
    assert strict(display.document(samples.small_tree()))["modules"][0]["run"] is None


def test_models_document_lists_the_models() -> None:
    data = strict(models_document(samples.models()))
    assert [len(model["weights"]) for model in data["models"]] == [1, 2, 0]
    assert strict(models_document([]))["models"] == []


def test_odd_names_and_values_stay_strict() -> None:
    capture = Capture()
    for name in samples.ODD_NAMES:
        samples.put(capture, name, torch.tensor([float("inf")]))
    capture.metadata = {"loss": {"value": float("nan")}, "low": float("-inf")}
    data = strict(display.document(capture))
    names = [record["module"] for record in data["records"]]
    assert names == list(map(encodable, samples.ODD_NAMES))
    assert (data["loss"]["value"], data["low"]) == ("NaN", "-Infinity")


def test_schema_and_command_cannot_be_overridden() -> None:
    made = make_document("tree", {"schema": 9, "command": "x", "a": 1})
    assert made == {"schema": 1, "command": "tree", "a": 1}


OPENED = [f"sample_models/{name}" for name in ("run", "digits.safetensors", "five.safetensors")]


@pytest.mark.parametrize("make", [*SAMPLES.values(), *(partial(hookscope.load, x) for x in OPENED)])
def test_a_result_is_saved_as_json(make: Callable[[], Result], tmp_path: Path) -> None:
    result, file = make(), tmp_path / "x.json"
    assert Result.save(result, file) == file.stat().st_size
    saved = json.loads(file.read_text())
    assert {*saved} == {*result.to_json(), "hookscope", "schema"}
    with pytest.raises(RequestError, match=r"x\.txt"):
        Result.save(result, tmp_path / "x.txt")


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


def test_a_view_of_a_tensor_has_a_text_and_no_document(repo: Path) -> None:
    from hookscope.stores.capture_file import open_capture
    from hookscope.views.images.tensor_view import read_tensor_view

    file = open_capture(repo / "sample_models/five.safetensors")
    view = read_tensor_view(file, file.records[0].key)
    assert display.text(view, PIPE)
    with pytest.raises(TypeError, match="TensorView"):
        display.document(view)
