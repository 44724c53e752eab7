"""Archives that would run code, that are damaged, or that another torch wrote."""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.serde.schema import SCHEMA_VERSION
from torch._export.serde.serialize import serialize
from torch.export import Dim

from hookscope import load_model as load
from hookscope.errors import ModelError
from tests.archives import Change, rezip
from tests.refusals import refused

MARK = Path("ran")  # what the crafted files make in the working folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    return torch.export.export(model, (torch.ones(3, 2),), dynamic_shapes=({0: Dim("n")},))


@pytest.fixture
def sound(program: torch.export.ExportedProgram) -> Path:
    torch.export.save(program, "net.pt2")
    return Path("net.pt2")


def crafted(source: Path, change: Change, **more: bytes) -> Path:
    """The archive with each record replaced by what ``change`` makes of it, None for none."""
    root = zipfile.ZipFile(source).namelist()[0].partition("/")[0]
    added = {f"{root}/{name}": record for name, record in more.items()}
    return rezip(source, Path("crafted.pt2"), change, added=added)


def program_text(old: str, new: str) -> Change:
    def change(name: str, data: bytes) -> bytes | str:
        if not name.endswith("models/model.json"):
            return data
        assert re.search(old, data.decode())
        return re.sub(old, lambda match: new, data.decode())

    return change


class Marks:
    """Makes a file when it is unpickled, and then is the tensor of the first layer's weight."""

    def __reduce__(self) -> tuple[Any, ...]:
        made = "__import__('torch').nn.Parameter(__import__('torch').ones(2, 2))"
        return eval, (f"open({str(MARK)!r}, 'w').close() or {made}",)


def pickled() -> bytes:
    buffer = io.BytesIO()
    torch.save(Marks(), buffer)
    return buffer.getvalue()


def flagged(name: str, data: bytes) -> bytes | str:
    """The config of the weights with the first of them said to be a pickle."""
    if not name.endswith("weights_config.json"):
        return data
    config = json.loads(data)
    config["config"]["0.weight"] |= {"use_pickle": True, "path_name": "weight_9"}
    return json.dumps(config)


def with_constant(kind: str) -> Change:
    entry = {"path_name": f"{kind}_0", "is_param": False, "use_pickle": False}
    config = json.dumps({"config": {"extra": {**entry, "tensor_meta": None}}})
    return lambda name, data: config if name.endswith("constants_config.json") else data


def with_enum(name: str, data: bytes) -> bytes | str:
    """The program with a member of some module's enum in the structure of its input."""
    if not name.endswith("models/model.json"):
        return data
    program = json.loads(data)
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    structure = json.loads(signature["in_spec"])
    structure[1]["context"] = json.dumps({"__enum__": True, "fqn": "this:d", "name": "a"})
    signature["in_spec"] = json.dumps(structure)
    return json.dumps(program)


def with_example(data: bytes) -> Change:
    return lambda name, old: data if "sample_inputs" in name else old


UNCHANGED: Change = lambda name, data: data  # noqa: E731
SHELL = f"__import__('pathlib').Path({str(MARK)!r}).touch()"
RELU = r"torch\.ops\.aten\.relu_?\.default"
CALLS = {
    "torch.hub.load": "torch.hub.load",
    "_operator.call": "_operator.call",
    "torch.ops.aten.from_file.default": "torch.ops.aten.from_file.default, which opens a file",
    "torch.ops.aten.from_file.out": "opens a file",
    "torch.ops.aten.save.default": "writes a file",
    "torch.ops.image.read_file.default": "reads a file",
    "torch.ops.image.write_file.default": "writes a file",
}
CODE: list[tuple[Change, dict[str, bytes], str]] = [
    (flagged, {"data/weights/weight_9": pickled()}, "0.weight"),
    (with_example(pickled()), {}, "data/sample_inputs/model.pt that calls"),
    (with_example(b"rubbish"), {}, "data/sample_inputs/model.pt that cannot"),
    (with_constant("opaque_obj"), {"data/constants/opaque_obj_0": pickle.dumps(Marks())},
     "extra that calls builtins.eval"),
    (with_constant("custom_obj"), {"data/constants/custom_obj_0": pickled()}, "extra"),
    (UNCHANGED, {"data/weights/model.pt": pickled()}, "data/weights/model.pt"),
    (UNCHANGED, {"data/aotinductor/model/net.so": b"\x7fELF"}, "(data/aotinductor"),
    (program_text(r'"expr_str": "[^"]*"', f'"expr_str": "{SHELL}"'), {}, "the size"),
    *((program_text(RELU, call), {}, finding) for call, finding in CALLS.items()),
    (with_enum, {}, "import"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "more", "finding"), CODE)
def test_an_archive_that_would_run_code_is_refused_unopened(
    sound: Path, change: Change, more: dict[str, bytes], finding: str
) -> None:
    path = crafted(sound, change, **more)
    with refused(ModelError, "would run code", message=finding, hint="trust"):
        load(path)
    assert not MARK.exists()


def test_trust_opens_what_it_vouches_for(sound: Path) -> None:
    path = crafted(sound, flagged, **{"data/weights/weight_9": pickled()})
    module = load(path, trust=True).module
    assert MARK.exists()
    assert torch.equal(module.get_parameter("0.weight"), torch.ones(2, 2))


def test_the_crafted_sizes_and_examples_are_dangerous_indeed(sound: Path) -> None:
    for change in (CODE[1][0], CODE[7][0]):
        with pytest.raises(ModelError, match="cannot be opened"):
            load(crafted(sound, change), trust=True)
        assert MARK.exists()
        MARK.unlink()


def test_what_torch_saves_needs_no_trust(sound: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        module = load(sound).module
    assert [type(m).__name__ for m in module.modules()] == ["Sequential", "Linear", "ReLU"]
    assert not caplog.records


def write_old(
    path: Path, program: torch.export.ExportedProgram, version: str, **other: bytes
) -> None:
    """The layout of torch 2.4 to 2.7: the parts side by side, and no folder."""
    parts = serialize(program)
    records = {
        "serialized_exported_program.json": parts.exported_program,
        "serialized_state_dict.pt": parts.state_dict,
        "serialized_constants.pt": parts.constants,
        "serialized_example_inputs.pt": parts.example_inputs,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, record in (records | other).items():
            archive.writestr(name, record)
        archive.writestr("version", version)


def test_the_older_layout_is_read_without_running_code(
    program: torch.export.ExportedProgram,
) -> None:
    version = ".".join(map(str, SCHEMA_VERSION))
    write_old(Path("old.pt2"), program, version)
    assert len(list(load("old.pt2").module.children())) == 2
    write_old(Path("old.pt2"), program, version, **{"serialized_state_dict.pt": pickled()})
    with pytest.raises(ModelError, match="serialized_state_dict"):
        load("old.pt2")
    assert not MARK.exists()
    write_old(Path("old.pt2"), program, "5.1")  # of another torch
    with refused(ModelError, r"\['5', '1'\]", hint="torch"):
        load("old.pt2")


def test_an_operator_that_nobody_registered_is_named(sound: Path) -> None:
    path = crafted(sound, program_text(r"aten\.relu_?\.default", "mylib.mine.default"))
    with pytest.raises(ModelError, match="mylib::mine"):
        load(path)


@pytest.mark.parametrize("length", [0, 2, 500, 4000, None])
def test_a_cut_off_file_and_a_changed_byte_are_noticed(sound: Path, length: int | None) -> None:
    data = bytearray(sound.read_bytes()[:length])
    if length is None:
        data[data.index(b'"nodes"') + 1] ^= 1
    sound.write_bytes(data)
    match = r"damaged: .*models/model.json" if length is None else "cut-off|empty"
    with refused(ModelError, match, hint=""):
        load(sound)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (program_text('"nodes"', '"nodez"'), "nodes"),
        (lambda name, data: None if name.endswith("weight_0") else data, "weight_0"),
        (lambda name, data: "7" if name.endswith("archive_version") else data, "version 7"),
        (lambda name, data: "[1]" if name.endswith("config.json") else data, "config"),
        (lambda name, data: b"" if name.endswith("model.json") else data, ""),
    ],
)
def test_an_archive_that_torch_refuses_is_told_in_a_sentence(
    sound: Path, change: Change, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelError, match="cannot be opened") as caught:
        load(crafted(sound, change))
    assert cause in caught.value.message
    assert "\n" not in caught.value.message
    assert not caplog.records
