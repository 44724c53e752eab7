"""Documents for ``--json``: strict, stable, complete."""

from __future__ import annotations

import json
from typing import Any

import torch

from hookscope.escapes import encodable
from hookscope.files import strict_json
from hookscope.hooks.capture import Capture
from hookscope.specs.catalog import ModelInfo
from hookscope.views import display
from hookscope.views.capture import capture_document
from hookscope.views.display import make_document
from hookscope.views.models import models_document
from tests.views.text import samples


def strict(value: dict[str, Any]) -> Any:
    """Parse as a strict reader would: NaN and Infinity are not JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = strict_json.dumps(value, indent=2)
    assert text.isascii()
    return json.loads(text, parse_constant=refuse)


def test_capture_document_has_metadata_records_and_coverage() -> None:
    data = strict(capture_document(samples.outputs(), "resnet18.capture.safetensors"))
    assert list(data)[:2] == ["schema", "command"]
    assert (data["schema"], data["command"]) == (1, "capture")
    assert data["file"] == "resnet18.capture.safetensors"
    assert data["model"] == {"spec": "resnet18"}
    assert [r["key"] for r in data["records"]][3] == "layer3.0.relu:2/output"
    record = data["records"][2]
    assert record["shape"] == [1, 16, 4, 4]
    assert (record["stats"]["nan"], record["stats"]["inf"]) == (2, 1)
    assert data["coverage"]["matched"] == 5
    assert data["coverage"]["not_executed"][0]["module"] == "layer3.0.blocks"
    assert data["top"][0][0]["label"] == "great white shark"
    assert data["absent"] == []


def test_grads_document_adds_ratio_and_mark() -> None:
    data = strict(capture_document(samples.gradients()))
    assert (data["command"], data["file"]) == ("grads", None)
    assert data["loss"]["target"] == "3 (tiger shark)"
    by_key = {record["key"]: record for record in data["records"]}
    assert by_key["layer1.0.conv2/output.grad"]["mark"] == "vanishing"
    weight = by_key["fc/weight.grad"]
    assert weight["ratio"] == weight["stats"]["norm"] / 2
    assert data["absent"][0]["reason"] == "frozen"


def test_same_capture_gives_the_same_text() -> None:
    texts = {strict_json.dumps(capture_document(samples.outputs())) for _ in range(2)}
    assert len(texts) == 1


def test_odd_names_and_values_stay_strict() -> None:
    capture = Capture()
    for name in samples.ODD_NAMES:
        samples.put(capture, name, torch.tensor([float("inf")]))
    capture.metadata = {"loss": {"value": float("nan")}, "low": float("-inf")}
    data = strict(capture_document(capture))
    assert [record["module"] for record in data["records"]] == list(
        map(encodable, samples.ODD_NAMES)
    )
    assert (data["loss"]["value"], data["low"]) == ("NaN", "-Infinity")


def test_tree_document_has_every_field_of_every_module() -> None:
    data = strict(display.document(samples.with_run(samples.small_tree())))
    assert (data["command"], data["model"]) == ("tree", "small.py:make")
    first = next(m for m in data["modules"] if m["name"] == "block.first")
    assert first["aliases"] == ["head"]
    assert first["run"] == {
        "calls": 2,
        "outputs": ["1x8", "8x1x2"],
        "flops": 236_027_904,
        "other_outputs": [],
    }
    assert data["total"]["parameters"] == 600
    assert strict(display.document(samples.small_tree()))["modules"][0]["run"] is None


def test_models_document_lists_the_models() -> None:
    info = ModelInfo("alexnet", "classification", 61_100_840, ("IMAGENET1K_V1",), "1x3x224x224")
    data = strict(models_document([info]))
    assert data["models"][0]["weights"] == ["IMAGENET1K_V1"]
    assert strict(models_document([]))["models"] == []


def test_schema_and_command_cannot_be_overridden() -> None:
    assert make_document("tree", {"schema": 9, "command": "x", "a": 1}) == {
        "schema": 1,
        "command": "tree",
        "a": 1,
    }
