"""Values of ONNX graphs that torch has no equal of, or that are absent, do not end a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import hookscope
from hookscope.errors import InputError
from tests.conftest import Run
from tests.refusals import refused
from tests.sources.onnx.handmade import FLOAT, model, saved, session_values

X = np.array([1, -2, 3, 4], np.float32)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_values_of_four_bits_are_absent_and_those_after_them_recorded(
    name: str, tmp_path: Path
) -> None:
    kind = getattr(TensorProto, name.upper())
    proto = model(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantize"),
        ],
        [("x", FLOAT, [4])],
        [("y", FLOAT, [4])],
        {"s": np.array(0.5, np.float32)},
        opset_imports=[helper.make_opsetid("", 21)],
    )
    proto.graph.initializer.append(helper.make_tensor("z", kind, [], [3]))
    path = saved(proto, tmp_path / "a.onnx")
    shot = hookscope.capture(path, input=torch.from_numpy(X))
    assert np.array_equal(shot.output.numpy(), session_values(path, {"x": X}, ["y"])["y"])
    reasons = {absent.module: absent.reason for absent in shot.absent}
    assert set(reasons) == {"quantize"}
    assert f"tensor({name})" in reasons["quantize"]


def optional_output() -> onnx.ModelProto:
    """A branch whose output is an optional tensor: absent if the input is true."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    tensor = helper.make_tensor("t", FLOAT, [2], [1.0, 2.0])
    full = [
        helper.make_node("Constant", [], ["t"], value=tensor),
        helper.make_node("Optional", ["t"], ["full"]),
    ]
    empty = [
        helper.make_node("Optional", [], ["empty"], type=helper.make_tensor_type_proto(FLOAT, [2]))
    ]
    branches = {
        f"{branch}_branch": helper.make_graph(nodes, name, [], [helper.make_value_info(name, kind)])
        for branch, name, nodes in (("then", "empty", empty), ("else", "full", full))
    }
    proto = model(
        [helper.make_node("If", ["cond"], ["y"], "choice", **branches)],
        [("cond", TensorProto.BOOL, [])],
        [],
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    proto.graph.output.append(helper.make_value_info("y", kind))
    return proto


def test_an_optional_output_that_is_empty_is_none_and_the_process_goes_on(tmp_path: Path) -> None:
    path = saved(optional_output(), tmp_path / "a.onnx")
    assert onnxruntime.InferenceSession(path).run(None, {"cond": np.array(True)}) == [None]
    code = f"""
import hookscope, torch
shot = hookscope.capture({path!r}, input=torch.tensor(True))
print(shot.output, [absent.reason for absent in shot.absent])
print(hookscope.capture({path!r}, input=torch.tensor(False)).output)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "None ['no tensor was returned', 'no tensor was returned']",
        "tensor([1., 2.])",
    ]


@pytest.mark.parametrize("length", ["?", "-1", "*"])
def test_an_open_length_without_a_name_need_not_equal_another(length: str, tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", FLOAT, [length, length])],
        [("y", FLOAT, [length, length])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    assert hookscope.capture(path, input=torch.ones(2, 3)).output.shape == (2, 3)


def test_an_input_of_one_number_gets_noise_and_takes_no_other_shape(
    tmp_path: Path, run: Run
) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [("x", FLOAT, [])], [("y", FLOAT, [])])
    path = saved(proto, tmp_path / "a.onnx")
    assert hookscope.capture(path).output.shape == ()
    assert hookscope.capture(path, input=torch.tensor(2.0)).output.item() == -2
    assert "noise of one number" in run("check", path).stderr
    with pytest.raises(InputError, match="The input 'x' must be a scalar, but got 1"):
        hookscope.capture(path, input=torch.ones(1))


def test_an_unused_tensor_that_an_old_file_lists_as_input_need_not_be_given(
    tmp_path: Path,
) -> None:
    proto = model(
        [helper.make_node("Neg", ["x"], ["y"])],
        [("x", FLOAT, [4]), ("queue", FLOAT, [2])],
        [("y", FLOAT, [4])],
        {"queue": np.zeros(2, np.float32)},
        opset_imports=[helper.make_opsetid("", 9)],
        ir_version=3,
    )
    shot = hookscope.capture(saved(proto, tmp_path / "a.onnx"), input=torch.from_numpy(X))
    assert np.array_equal(shot.output.numpy(), -X)


def test_shapes_of_a_graph_that_no_made_up_input_fits_name_what_it_takes(
    tmp_path: Path, run: Run
) -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, [4]), ("shape", TensorProto.INT64, [2])],
        [("y", FLOAT, ["a", "b"])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    with refused(
        InputError,
        "made up",
        hint="It takes x: float32 4, shape: int64 2.",
    ):
        hookscope.tree(path, shapes=True)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "shape.npy", np.array([2, 2]))
    inputs = [f"--input={name}={tmp_path / name}.npy" for name in ("x", "shape")]
    assert "2x2" in run("capture", path, *inputs, "-o", str(tmp_path / "a.safetensors")).stdout


def test_shapes_of_a_graph_of_texts_say_that_texts_are_no_input(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("StringNormalizer", ["x"], ["y"])],
        [("x", TensorProto.STRING, [1])],
        [("y", TensorProto.STRING, [1])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    with pytest.raises(InputError, match="of type string"):
        hookscope.tree(path, shapes=True)
    assert [node.name for node in hookscope.tree(path).modules] == [".", "y"]
