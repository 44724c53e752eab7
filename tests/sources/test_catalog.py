"""The bundled list of models, and names checked against it."""

from __future__ import annotations

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from hookscope.errors import ModelError, RequestError
from hookscope.specs import catalog
from hookscope.specs.value_readers import read_shape
from tests.conftest import needs_list
from tests.refusals import refused


def test_the_list_is_for_the_installed_torchvision() -> None:
    listed = json.loads(catalog.FILE.read_text("utf-8"))["torchvision"]
    newest, installed = (
        tuple(map(int, text.split(".")[:2])) for text in (listed, version("torchvision"))
    )
    assert installed <= newest, f"run python -m tools.catalog for {version('torchvision')}"


def test_every_name_of_torchvision_is_listed_with_its_weights() -> None:
    from torchvision.models import get_model_weights, list_models

    listed = {info.name: info for info in catalog.bundled_models()}
    assert list(listed) == list_models()
    for name, info in listed.items():
        if info.task != "quantized":
            assert info.weights == tuple(w.name for w in get_model_weights(name)), name


def test_tasks_are_those_of_torchvision() -> None:
    counts = Counter(info.task for info in catalog.bundled_models())
    images = {"classification": 80, "detection": 12, "segmentation": 6, "quantized": 12}
    assert counts == images | {"optical flow": 2, "video": 9}
    assert all(len(read_shape(info.input)) in (3, 4, 5) for info in catalog.bundled_models())


@pytest.mark.exhaustive
def test_the_list_is_what_torchvision_says_when_asked() -> None:
    from hookscope.sources.torchvision import live

    assert catalog.bundled_models() == live()


@needs_list
def test_an_unknown_name_is_answered_with_three_near_ones() -> None:
    with pytest.raises(ModelError, match="'resnet17'") as caught:
        catalog.check_model_spec("resnet17")
    near = caught.value.hint.partition("?")[0]
    assert len(near.replace(" or ", ", ").split(", ")) == 3
    assert "hookscope models" in caught.value.hint


@needs_list
def test_a_name_that_is_a_file_is_told_for_what_it_is(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("weights", "wb") as file:
        file.write(b"\x80\x02}q\x00.")
    with pytest.raises(ModelError, match=r"'weights' .* checkpoint"):
        catalog.check_model_spec("weights")


@needs_list
def test_a_name_of_the_hugging_face_hub_is_told_its_prefix() -> None:
    with refused(ModelError, hint="hf:bert"):
        catalog.check_model_spec("bert-base-uncased")
    with pytest.raises(ModelError) as caught:
        catalog.check_model_spec("resnet17")
    assert "hf:" not in caught.value.hint


@pytest.mark.parametrize(
    ("model", "word", "message", "hint"),
    [
        ("resnet18", "missing.bin", "no weights file 'missing.bin'", "Check the name"),
        ("resnet18", "w.pht.pth", "no weights file", "Did you mean w.pth"),
        ("resnet18", "note.bin", "no weights file", "Check the name"),  # note.txt has no weights
        ("resnet18", "folder", "contains no weights", "weights file"),
        pytest.param(
            *("resnet18", "IMAGENET1K_V9", "no weights called 'IMAGENET1K_V9'", "IMAGENET1K_V1"),
            marks=needs_list,
        ),
        ("net.py", "default", "'default'", "--weights FILE"),
        ("net.py", "missing.bin", "no weights file", "Check the name"),
    ],
)
def test_weights_that_cannot_be_right_are_refused_at_once(
    tmp_path: Path, monkeypatch, model: str, word: str, message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for file in ("w.pth", "net.py", "note.txt"):
        Path(file).touch()
    spec = catalog.check_model_spec(model)
    with refused(RequestError, message, hint=hint):
        catalog.check_weights(spec, word)
    for sound in ("random", "w.pth"):
        catalog.check_weights(spec, sound)


@pytest.mark.parametrize("word", ["default", "DEFAULT", "IMAGENET1K_V1"])
def test_weights_that_a_model_has_pass(word: str) -> None:
    catalog.check_weights(catalog.check_model_spec("resnet18"), word)
