"""The grammar of model specs, shapes and assignments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.specs.model_spec import ModelSpec, parse_model
from hookscope.specs.value_readers import read_arguments, read_shape
from tests.refusals import refused


@pytest.mark.parametrize("name", ["", "Net"])
def test_a_python_file_may_name_its_model(tmp_path: Path, name: str) -> None:
    path = tmp_path / "my:net.py"  # as after a Windows drive letter
    path.touch()
    word = f"{path}:{name}" if name else str(path)
    assert parse_model(word) == ModelSpec("file", word, str(path), name)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("nett.py", "'nett.py'"),
        ("nett.py:Net", "'nett.py'"),
        ("net.py:", "''"),
        ("net.py:a.b", "'a.b'"),
        (".", "is a folder"),
        ("runs/last.pth", "'runs/last.pth'"),
        ("last.safetensors", "file"),
        ("tim:resnet18", "'tim'"),
        ("timm:a/b", "timm"),
        ("hub:pytorch/vision", "repository"),
        ("hf:", "folder"),
        ("hf:./nets", "'./nets'"),
        ("hf:nets/config.json", "folder"),
        ("hf:.", "has no config.json"),
        ("C:\\nets\\net.py:Net", "'C:\\\\nets\\\\net.py'"),
        ("C:\\nets\\last.pth", "file"),
    ],
)
def test_a_word_that_cannot_be_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    (tmp_path / "net.py").touch()
    monkeypatch.chdir(tmp_path)
    with refused(ModelError, message=message, status=2):
        parse_model(word)


def test_a_mistyped_file_is_answered_with_near_ones(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").touch()
    with pytest.raises(ModelError, match=r"Did you mean .*mynet\.py"):
        parse_model(f"{tmp_path}/mynets.py:Net")


def write_exported(path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with path.open("wb") as file:
        torch.export.save(program, file)


def write_scripted(path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), str(path))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("write", "source"), [(write_exported, "exported"), (write_scripted, "torchscript")]
)
@pytest.mark.parametrize(
    ("file", "name"), [("net.pt2", "net"), ("my net.v2.bin", "my_net_v2"), ("-", "model")]
)
def test_a_file_that_holds_a_model_is_one_whatever_it_is_called(
    tmp_path: Path, write: Callable[[Path], None], source: str, file: str, name: str
) -> None:
    path = tmp_path / file
    write(path)
    name = source if name == "model" else name
    assert parse_model(str(path)) == ModelSpec(source, str(path), str(path), name)


def test_a_plain_name_is_torchvisions_beside_a_folder_and_a_program_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = ModelSpec("torchvision", "resnet18", "", "resnet18")
    Path("resnet18").mkdir()
    assert parse_model("resnet18") == plain
    Path("resnet18").rmdir()
    write_exported(Path("resnet18"))
    assert parse_model("resnet18") == plain
    assert parse_model("./resnet18").source == "exported"


def test_a_file_that_holds_no_model_is_refused_with_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    with refused(ModelError, "is a pickled checkpoint, not a model", hint=f"--weights {path}"):
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
    with refused(ModelError, "argument", hint="resnet18(KEY=VALUE)"):
        parse_model("resnet18(3)")


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("(relu)", "The argument relu in", "are literals"),
        ("(act=relu)", "evaluated", "write quotes or --model-arg act=relu"),
        ("(print(1))", r"The argument print\(1\) in", "builds"),
        ("(2 ** 9)", r"The argument 2 \*\* 9 in", "are literals"),
        ("(*[1])", r"The argument \*\[1\] in", "are literals"),
        ("(**{'a': 1})", r"contain a dict with \*\*", "by its name"),
        ("(a=1, a=2)", "contain a twice", "once"),
        ("(5)(6)", "cannot be read", "quotes"),
        ("(5,,)", "cannot be read", "quotes"),
        ("(" + "[" * 999 + ")", "cannot be read", "quotes"),
        ("(5", "Net", r"net.py:NAME\(5\)"),
    ],
)
def test_arguments_that_are_no_literals_are_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, call, message, hint
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").touch()
    with refused(ModelError, message, hint=hint.replace("\\", "")):
        parse_model(f"net.py:Net{call}")
    assert capsys.readouterr().out == ""
