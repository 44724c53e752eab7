"""Model specs, shapes and arguments as they are written; names checked against the bundled list."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Optional

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.sources.arguments import convert_arguments
from hookscope.specs import catalog
from hookscope.specs.model_spec import ModelSpec, parse_model
from hookscope.specs.value_readers import CommandLineText, read_arguments, read_shape
from tests.conftest import needs_list
from tests.refusals import refused


@pytest.mark.parametrize("name", ["", "Net"])
def test_a_python_file_may_name_its_model(tmp_path: Path, name: str) -> None:
    path = tmp_path / "my:net.py"  # as after a Windows drive letter
    path.touch()
    word = f"{path}:{name}" if name else str(path)
    assert parse_model(word) == ModelSpec("file", word, str(path), name)


WRONG = """
nett.py nett.py:Net net.py: net.py:a.b . runs/last.pth last.safetensors tim:resnet18 timm:a/b
hub:pytorch/vision hf: hf:./nets hf:nets/config.json hf:. C:\\nets\\net.py:Net C:\\nets\\last.pth
"""


@pytest.mark.parametrize("word", ["", "  ", *WRONG.split()])
def test_a_word_that_cannot_be_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    (tmp_path / "net.py").touch()
    monkeypatch.chdir(tmp_path)
    with refused(ModelError, status=2):
        parse_model(word)


@pytest.mark.parametrize(
    ("sample", "source"),
    [("digits_exported.pt2", "exported"), ("digits_scripted.pt", "torchscript")],
)
@pytest.mark.parametrize(
    ("file", "name"), [("net.pt2", "net"), ("my net.v2.bin", "my_net_v2"), ("-", "model")]
)
def test_a_file_that_holds_a_model_is_one_whatever_it_is_called(
    tmp_path: Path, repo: Path, sample: str, source: str, file: str, name: str
) -> None:
    path = tmp_path / file
    shutil.copy(repo / "sample_models" / sample, path)
    name = source if name == "model" else name
    assert parse_model(str(path)) == ModelSpec(source, str(path), str(path), name)


def test_a_plain_name_is_torchvisions_beside_a_folder_and_a_program_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = ModelSpec("torchvision", "resnet18", "", "resnet18")
    Path("resnet18").mkdir()
    assert parse_model("resnet18") == plain
    Path("resnet18").rmdir()
    shutil.copy(repo / "sample_models" / "digits_exported.pt2", "resnet18")
    assert parse_model("resnet18") == plain
    assert parse_model("./resnet18").source == "exported"


def test_a_file_that_holds_no_model_is_refused_with_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    with refused(ModelError, "checkpoint", hint=f"--weights {path}"):
        parse_model(str(path))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("timm:resnet18.a1_in1k", ("timm", "", "resnet18.a1_in1k", "resnet18.a1_in1k")),
        ("hf:org/name", ("hf", "org/name", "name", "name")),
        ("torch.nn:ReLU", ("module", "torch.nn", "ReLU", "ReLU")),
        ("json:", ("module", "json", "", "json")),
        ("here.nets:", ("module", "here.nets", "", "nets")),
        ("beside:Net", ("module", "beside", "Net", "Net")),
    ],
)
def test_a_prefix_or_a_module_names_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("beside.py").touch()
    spec = parse_model(word)
    assert (spec.source, spec.path, spec.name, spec.stem) == expected


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.sampled_from("xX,×"))
def test_shapes_are_read_as_they_are_written(lengths: list[int], between: str) -> None:
    assert read_shape(between.join(map(str, lengths))) == tuple(lengths)


@pytest.mark.parametrize("text", ["", "x", "1x", "1x0", "1x-3", "1x2.5", "axb", "1 3"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="shape"):
        read_shape(text)


def test_assignments_keep_their_text() -> None:
    assert read_arguments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pairs", [["width"], ["=3"], ["1a=3"], ["a-b=3"], ["a=1", "a=2"]])
def test_what_is_no_assignment_is_refused(pairs: list[str]) -> None:
    with pytest.raises(RequestError):
        read_arguments(pairs)


@pytest.mark.parametrize(
    ("call", "positional", "keywords"),
    [
        ("(5)", (5,), {}),
        ("()", (), {}),
        ("( -1.5, [1, (2,)] )", (-1.5, [1, (2,)]), {}),
        ("(width=16, act='relu')", (), {"width": 16, "act": "relu"}),
        ("(3, {'a': {1, 2}}, deep=True, path='a/b:c(1)')", (3, {"a": {1, 2}}), None),
        ("(None,)", (None,), {}),
    ],
)
@pytest.mark.parametrize("place", ["net.py:Net", "a (copy)/net.py:Net", "beside:Net"])
def test_the_name_of_a_model_may_have_literal_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place, call, positional, keywords
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a (copy)").mkdir()
    for file in ("net.py", "beside.py", "a (copy)/net.py"):
        Path(file).touch()
    spec, bare = parse_model(place + call), parse_model(place)
    assert (spec.source, spec.path, spec.name, spec.stem) == (
        *(bare.source, bare.path, bare.name, bare.stem),
    )
    assert spec.text == place + call
    assert spec.arguments.positional == positional
    expected = {"deep": True, "path": "a/b:c(1)"} if keywords is None else keywords
    assert dict(spec.arguments.keywords) == expected


def test_a_model_of_a_source_takes_arguments_by_name() -> None:
    assert parse_model("resnet18(num_classes=3)").arguments.keywords == (("num_classes", 3),)
    assert parse_model("timm:resnet18.a1(in_chans=1)").name == "resnet18.a1"
    with pytest.raises(ModelError):
        parse_model("resnet18(3)")


CALLS = ["(relu)", "(act=relu)", "(print(1))", "(2 ** 9)", "(*[1])", "(**{'a': 1})", "(a=1, a=2)"]
CALLS += ["(5)(6)", "(5,,)", "(" + "[" * 999 + ")", "(5"]


@pytest.mark.parametrize("call", CALLS)
def test_arguments_that_are_no_literals_are_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").touch()
    with refused(ModelError):
        parse_model(f"net.py:Net{call}")
    assert capsys.readouterr().out == ""


def build(
    width: int,
    scale: float,
    name: str,
    deep: bool,
    plain,
    maybe: Optional[int],  # noqa: UP045
    either: int | str,
    act: Literal["relu", "gelu", 3],
    sizes: list[int],
    pair: tuple[int, int],
) -> None: ...


class Net:
    def __init__(self, width: int, later: Missing = 3) -> None: ...  # noqa: F821


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("width", "8", 8),
        ("scale", "8", 8.0),
        ("scale", "1e-3", 0.001),
        ("name", "8", "8"),
        ("name", "1e3", "1e3"),
        ("deep", "False", False),
        ("deep", "yes", True),
        ("plain", "8", 8),
        ("plain", "(1, 2)", (1, 2)),
        ("plain", "relu", "relu"),
        ("plain", "None", None),
        ("plain", "null", None),
        ("plain", "true", True),
        ("plain", '{"a": [1, null]}', {"a": [1, None]}),
        ("maybe", "null", None),
        ("pair", "[1, 2]", (1, 2)),
        ("maybe", "8", 8),
        ("maybe", "None", None),
        ("either", "8", 8),
        ("either", "wide", "wide"),
        ("act", "gelu", "gelu"),
        ("act", "3", 3),
        ("sizes", "[1, 2]", [1, 2]),
        ("unknown", "8", 8),
    ],
)
def test_a_value_follows_its_parameter(key: str, text: str, value: object) -> None:
    found = convert_arguments(build, {key: CommandLineText(text)})[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("width", "wide", "an integer"),
        ("width", "1.5", "an integer"),
        ("scale", "big", "a number"),
        ("deep", "maybe", "true or false"),
        ("maybe", "x", "int or none"),
        ("act", "tanh", "one of relu, gelu, 3"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(key: str, text: str, wanted: str) -> None:
    with pytest.raises(RequestError, match=f"{key}={text} .*{wanted}"):
        convert_arguments(build, {key: CommandLineText(text)})


def test_a_class_is_read_by_its_constructor_and_values_from_python_stay_as_they_are() -> None:
    given = {"width": CommandLineText("8"), "later": CommandLineText("9")}
    assert convert_arguments(Net, given) == {"width": 8, "later": 9}
    of_python = {"plain": "8", "width": "wide"}
    assert convert_arguments(build, of_python) == of_python


def test_the_list_is_for_the_installed_torchvision() -> None:
    listed = json.loads(catalog.FILE.read_text("utf-8"))["torchvision"]
    newest, installed = (
        tuple(map(int, text.split(".")[:2])) for text in (listed, version("torchvision"))
    )
    assert installed <= newest, f"run python -m tools.catalog for {version('torchvision')}"


def test_every_name_of_torchvision_is_listed_with_its_weights_and_the_shape_of_its_input() -> None:
    from torchvision.models import get_model_weights, list_models

    listed = {info.name: info for info in catalog.bundled_models()}
    assert list(listed) == list_models()
    for name, info in listed.items():
        assert len(read_shape(info.input)) in (3, 4, 5)
        if info.task != "quantized":
            assert info.weights == tuple(w.name for w in get_model_weights(name)), name


def test_tasks_are_those_of_torchvision() -> None:
    assert Counter(info.task for info in catalog.bundled_models()) == {
        "classification": 80,
        "detection": 12,
        "optical flow": 2,
        "quantized": 12,
        "segmentation": 6,
        "video": 9,
    }


@pytest.mark.exhaustive
def test_the_list_is_what_torchvision_says_when_asked() -> None:
    from hookscope.sources.torchvision import live

    assert catalog.bundled_models() == live()


@needs_list
def test_an_unknown_name_is_answered_with_near_ones_and_one_of_the_hub_with_its_prefix() -> None:
    with pytest.raises(ModelError, match="'resnet17'") as caught:
        catalog.check_model_spec("resnet17")
    near = caught.value.hint.partition("?")[0]
    assert near.count("resnet") == len(near.replace(" or ", ", ").split(", ")) == 3
    assert "hf:" not in caught.value.hint
    with refused(ModelError, hint="hf:bert"):
        catalog.check_model_spec("bert-base-uncased")


@needs_list
def test_a_name_that_is_a_file_is_told_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ModelError, match="'weights' is a pickled checkpoint"):
        catalog.check_model_spec("weights")


@pytest.mark.parametrize(
    ("model", "word", "subject"),
    [
        ("resnet18", "missing.bin", "'missing.bin'"),
        ("resnet18", "w.pht.pth", r"Did you mean w\.pth"),
        ("resnet18", "note.bin", "'note.bin'"),  # note.txt has no weights
        ("resnet18", "folder", "'folder'"),
        pytest.param("resnet18", "IMAGENET1K_V9", "IMAGENET1K_V1", marks=needs_list),
        ("net.py", "default", "'default'"),
        ("net.py", "missing.bin", "'missing.bin'"),
    ],
)
def test_weights_that_cannot_be_right_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, word: str, subject: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for file in ("w.pth", "net.py", "note.txt"):
        Path(file).touch()
    spec = catalog.check_model_spec(model)
    with refused(RequestError, subject):
        catalog.check_weights(spec, word)
    for sound in ("random", "w.pth"):
        catalog.check_weights(spec, sound)


@pytest.mark.parametrize("word", ["default", "DEFAULT", "IMAGENET1K_V1"])
def test_weights_that_a_model_has_pass(word: str) -> None:
    catalog.check_weights(catalog.check_model_spec("resnet18"), word)
