"""Damaged and crafted ONNX files, and missing data: a sentence, and nothing else is printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import hookscope
from hookscope.errors import EnvironmentFault, ForwardError, ModelError
from tests.refusals import refused
from tests.sources.onnx.handmade import FLOAT, model, saved, two_layers

X = torch.ones(2, 3)


def external(folder: Path, **entries: object) -> str:
    """The file of two layers with its weights in a data file; ``entries`` change where."""
    path, proto = folder / "net.onnx", two_layers()
    onnx.save_model(
        proto, path, save_as_external_data=True, location="net.onnx.data", size_threshold=0
    )
    if entries:
        proto = onnx.load(path, load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            entry.value = str(entries.get(entry.key, entry.value))
        saved(proto, path)
    return str(path)


def test_weights_may_be_in_a_data_file(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    inside = hookscope.capture(saved(two_layers(), tmp_path / "inside" / "net.onnx"), input=X)
    outside = hookscope.capture(external(tmp_path), input=X)
    assert os.path.getsize(tmp_path / "net.onnx.data") >= 64
    assert all(torch.equal(inside[key], outside[key]) for key in inside)
    assert outside.metadata["model"]["blake3"] != inside.metadata["model"]["blake3"]
    weight = hookscope.load_model(tmp_path / "net.onnx").module.first.MatMul.weight
    expected = onnx.numpy_helper.to_array(two_layers().graph.initializer[0])
    assert np.array_equal(weight.numpy(), expected)


def test_the_hash_covers_the_data_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = hookscope.load_model(path).weights.blake3
    data = bytearray((tmp_path / "net.onnx.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "net.onnx.data").write_bytes(data)
    assert hookscope.load_model(path).weights.blake3 != before


def test_links_to_one_folder_are_followed_as_in_the_cache_of_a_hub(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir(), snapshot.mkdir()
    external(tmp_path)
    for name, blob in (("net.onnx", "a1"), ("net.onnx.data", "b2")):
        os.rename(tmp_path / name, blobs / blob)
        os.symlink(blobs / blob, snapshot / name)
    assert hookscope.capture(snapshot / "net.onnx", input=X)["y/output"].shape == (2, 4)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "C:\\secret", "..\\secret", ""]
)
def test_a_path_out_of_the_folder_is_not_opened(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(1000))
    path = external(folder, location=location)
    with pytest.raises(ModelError, match="folder"):
        hookscope.tree(path)


def test_a_link_out_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(1000))
    os.symlink(tmp_path / "secret", folder / "weights")
    with pytest.raises(ModelError, match="folder"):
        hookscope.tree(external(folder, location="weights"))


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    path = external(tmp_path)
    os.remove(tmp_path / "net.onnx.data")
    with pytest.raises(ModelError, match=r"net\.onnx\.data"):
        hookscope.tree(path)


@pytest.mark.parametrize("entries", [{"offset": 10**9}, {"length": 10**15}, {"offset": "x"}])
def test_absurd_places_in_a_data_file_are_refused(entries: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="48 bytes"):
        hookscope.tree(external(tmp_path, **entries))


def _cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "y"


def _unknown_operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].op_type = "Frobnicate"
    proto.graph.node[2].domain = "com.example"
    proto.opset_import.append(helper.make_opsetid("com.example", 1))


def _future_opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 999


def _future_format(proto: onnx.ModelProto) -> None:
    proto.ir_version = 99


def _uncomputed_input(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].input[0] = "nothing"


def _uncomputed_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nothing"


def _absurd_shape(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = 10**15


def _negative_shape(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -3


def _unknown_dtype(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = 77


def _no_graph(proto: onnx.ModelProto) -> None:
    proto.ClearField("graph")


FAULTS: dict[Callable[[onnx.ModelProto], None], str] = {
    _cycle: "topologically|cycle",
    _unknown_operator: "Frobnicate",
    _future_opset: "999|opset",
    _future_format: "99|version",
    _uncomputed_input: "nothing",
    _uncomputed_output: "nothing",
    _absurd_shape: "48 bytes",
    _negative_shape: "negative",
    _unknown_dtype: "unknown type 77",
    _no_graph: "no graph",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_named_in_one_sentence(
    fault: Callable[[onnx.ModelProto], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = two_layers()
    fault(proto)
    path = saved(proto, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=FAULTS[fault]) as caught:
        hookscope.capture(path, input=X)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2
    assert capfd.readouterr() == ("", "")  # of the libraries, which print by themselves


def test_a_node_that_fails_is_named_by_its_module(tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Reshape", ["x", "shape"], ["h"], name="body/reshape"),
            helper.make_node("MatMul", ["h", "w"], ["y"], name="body/product"),
        ],
        [("x", FLOAT, ["n", 3]), ("shape", TensorProto.INT64, [2])],
        [("y", FLOAT, None)],
        {"w": np.ones((3, 2), np.float32)},
    )
    path = saved(proto, tmp_path / "net.onnx")
    with pytest.raises(ForwardError, match=r"layer body\.reshape \(Reshape\)") as caught:
        hookscope.capture(path, input=(X, torch.tensor([4, 4])))
    assert caught.value.layer == "body.reshape"
    assert "onnxruntime_src" not in str(caught.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(two_layers(), tmp_path / "net.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with refused(EnvironmentFault, "onnxruntime", hint="pip install"):
        hookscope.capture(path, input=X)
    assert hookscope.tree(path).total.parameters == 16  # needs the package onnx alone
