"""How an ONNX file runs: its inputs, windows of memory, levels of optimization, quantized files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from torch import nn

import hookscope
from hookscope.errors import CheckFailed, EditError, EnvironmentFault, InputError, RequestError
from hookscope.sources.onnx import value_shapes
from tests.conftest import Run
from tests.sources.onnx.conftest import Exported, images
from tests.sources.onnx.handmade import FLOAT, INT64, model, saved, session_values, two_layers

X = torch.arange(6.0).reshape(2, 3) - 2


@pytest.fixture
def small(tmp_path: Path) -> str:
    return saved(two_layers(), tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 4), "must have the shape 2x3, but got 2x4"),
        (torch.ones(2, 3, 1), "must have the shape 2x3, but got 2x3x1"),
        (torch.ones(2, 3, dtype=torch.int64), "must be float32, but got int64"),
        ({"y": X}, "has no input 'y'"),
        ((X, X), "takes 1 inputs, but got 2"),
        ([1.0], "list"),
    ],
    ids=["length", "rank", "dtype", "name", "number", "type"],
)
def test_an_input_that_does_not_fit_is_refused(small: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hookscope.capture(small, input=value)


def test_inputs_may_be_given_by_name(exported: Exported) -> None:
    left, right = exported.inputs
    by_name = hookscope.capture(exported.optimized, input={"right": right, "left": left})
    by_place = hookscope.capture(exported.optimized, input=(left, right))
    assert all(torch.equal(by_name[key], by_place[key]) for key in by_place)
    with pytest.raises(InputError, match="'right' is missing") as caught:
        hookscope.capture(exported.optimized, input={"left": left})
    assert caught.value.hint == "It takes left: float32 1x3x8x8, right: float32 1x3x8x8."


def test_two_open_lengths_of_one_name_are_equal(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", FLOAT, ["n", 3]), ("b", FLOAT, ["n", 3])],
        [("y", FLOAT, ["n", 3])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    assert hookscope.capture(path, input=(X, X))["y/output"].shape == (2, 3)
    with pytest.raises(InputError, match="'b' must have the shape nx3, but got 3x3"):
        hookscope.capture(path, input=(X, torch.ones(3, 3)))


def test_numbers_of_another_precision_are_converted(small: str) -> None:
    single, double = (hookscope.capture(small, input=x) for x in (X, X.double()))
    assert torch.equal(single["y/output"], double["y/output"])


def test_the_default_input_has_indices_for_tables_and_ones_for_masks(tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Gather", ["table", "ids"], ["h"], name="embed"),
            helper.make_node("Cast", ["mask"], ["m"], to=FLOAT, name="cast"),
            helper.make_node("Mul", ["h", "m"], ["y"], name="masked"),
        ],
        [("ids", INT64, ["batch", 40]), ("mask", INT64, ["batch", 40, 1])],
        [("y", FLOAT, ["batch", 40, 2])],
        {"table": np.arange(14, dtype=np.float32).reshape(7, 2)},
    )
    path = saved(proto, tmp_path / "a.onnx")
    shot = hookscope.capture(path, what=["input", "output"])
    ids = shot["embed/input.0"]
    assert ids.dtype == torch.int64 and ids.shape == (1, 40)
    assert int(ids.min()) >= 0 and int(ids.max()) < 7 and len(ids.unique()) > 1
    assert torch.equal(shot["cast/output"], torch.ones(1, 40, 1))
    assert [node.name for node in hookscope.tree(path).modules] == [".", "embed", "cast", "masked"]


def test_an_image_may_be_given_to_a_net_of_images(tmp_path: Path, repo: Path) -> None:
    proto = model(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"], name="pool")],
        [("x", FLOAT, ["n", 3, "h", "w"])],
        [("y", FLOAT, ["n", 3, 1, 1])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    shot = hookscope.capture(path, input=str(repo / "img.png"), what=["input", "output"])
    image = shot["pool/input.0"]
    assert image.shape == (1, 3, 224, 224)
    assert torch.allclose(shot["pool/output"].flatten(), image.mean((0, 2, 3)), atol=1e-5)


def test_values_do_not_depend_on_the_size_of_the_windows(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hookscope.capture(exported.unoptimized, input=exported.inputs)
    monkeypatch.setattr(value_shapes, "WINDOW", 600)  # bytes: about one tensor
    parts = hookscope.capture(exported.unoptimized, input=exported.inputs)
    assert list(whole) == list(parts)
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_windows_work_where_no_shape_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = model(
        [
            helper.make_node("NonZero", ["x"], ["places"], name="places"),
            helper.make_node("Cast", ["places"], ["h"], to=FLOAT, name="cast"),
            helper.make_node("Exp", ["h"], ["y"], name="exp"),
        ],
        [("x", FLOAT, ["n", 3])],
        [("y", FLOAT, [2, "m"])],
    )
    path = saved(proto, tmp_path / "a.onnx")
    monkeypatch.setattr(value_shapes, "WINDOW", 1)
    shot = hookscope.capture(path, input=X)
    assert torch.equal(shot["places/output"], X.nonzero().T)
    assert torch.allclose(shot["exp/output"], X.nonzero().T.float().exp())


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_levels_of_optimization_are_those_of_onnxruntime(level: str, exported: Exported) -> None:
    left, right = exported.inputs
    shot = hookscope.capture(
        exported.optimized, input=(left, right), layers=["blocks.1"], onnx_optimize=level
    )
    name = "ORT_DISABLE_ALL" if level == "none" else f"ORT_ENABLE_{level.upper()}"
    output = onnx.load(exported.optimized, load_external_data=False).graph.output
    last = next(
        n.output[0] for n in onnx.load(exported.optimized).graph.node if n.name == "node_relu_3"
    )
    values = session_values(
        exported.optimized,
        {"left": left.numpy(), "right": right.numpy()},
        [last, *(value.name for value in output)],
        name,
    )
    assert np.array_equal(shot["blocks.1/output"].numpy(), values[last])
    assert shot.metadata["options"].get("onnx_optimize", "none") == level
    assert shot.metadata["versions"]["onnxruntime"] == onnxruntime.__version__


def test_repeating_a_command_repeats_its_file(exported: Exported, tmp_path: Path, run: Run) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        done = run("capture", exported.optimized, "--verify", "-o", file)
        assert done.rc == 0 and "bit-identical" in done.stdout
        assert done.stderr.splitlines()[0] == f"weights: as saved in {exported.optimized}"
    assert files[0].read_bytes() == files[1].read_bytes()
    shown = run("show", files[0], "blocks.1")
    assert shown.rc == 0 and "blocks.1/output" in shown.stdout


class _Images(CalibrationDataReader):
    def __init__(self, names: Sequence[str]) -> None:
        self._feeds = iter([dict(zip(names, (x.numpy() for x in images()), strict=True))])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_quantized_file_has_the_same_names_and_a_module_for_each_added_node(
    form: QuantFormat, exported: Exported, tmp_path: Path
) -> None:
    path = tmp_path / "quantized.onnx"
    source = exported.unoptimized if form is QuantFormat.QDQ else exported.optimized
    names = [value.name for value in onnx.load(source).graph.input]
    quantize_static(source, path, _Images(names), quant_format=form)
    left, right = exported.inputs
    shot = hookscope.capture(path, input=(left, right))
    own = hookscope.capture(source, input=(left, right))
    names_of_model = {record.module for record in own.records}
    added = {r.module: r.type for r in shot.records if r.module not in names_of_model}
    kinds = {node.op_type for node in onnx.load(path).graph.node if not node.metadata_props}
    assert added and set(added.values()) <= kinds
    assert "blocks.1" in {record.module for record in shot.records}
    for module in ("blocks.1.conv", "head"):
        key = f"{module}/output"
        if form is QuantFormat.QDQ:
            error = (shot[key] - own[key]).abs().max() / own[key].abs().max()
            assert 0 < float(error) < 0.2, key
    # Optimized, 8-bit sums saturate on processors without instructions for them.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options)
    expected = session.run(None, dict(zip(names, (left.numpy(), right.numpy()), strict=True)))
    for value, tensor in zip(expected, shot.output.values(), strict=True):
        assert np.allclose(value, tensor.numpy(), atol=0.05)


def test_methods_of_cam_without_gradients_work(exported: Exported, tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
            helper.make_node("GlobalAveragePool", ["h"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["y"], name="flat"),
        ],
        [("x", FLOAT, ["n", 3, 8, 8])],
        [("y", FLOAT, ["n", 4])],
        {"w": np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)},
    )
    path = saved(proto, tmp_path / "a.onnx")
    for method in ("eigencam", "scorecam"):
        shot = hookscope.cam(path, by=method, layer="conv", shape=(1, 3, 8, 8))
        assert shot["conv/cam"].shape == (1, 6, 6)
    covered = hookscope.cam(path, by="occlusion", shape=(1, 3, 8, 8), target=1)
    conv = nn.Conv2d(3, 4, 3, bias=False)
    conv.weight.data = torch.from_numpy(
        onnx.numpy_helper.to_array(proto.graph.initializer[0]).copy()
    )
    net = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    same = hookscope.cam(net, by="eigencam", layer="0", shape=(1, 3, 8, 8))
    found = hookscope.cam(path, by="eigencam", layer="conv", shape=(1, 3, 8, 8))
    assert torch.allclose(same["0/cam"], found["conv/cam"], atol=1e-5)
    last = hookscope.cam(path, by="eigencam", shape=(1, 3, 8, 8))  # the layer is found
    assert torch.equal(last["conv/cam"], found["conv/cam"])
    wanted = hookscope.cam(net, by="occlusion", shape=(1, 3, 8, 8), target=1)
    assert torch.allclose(covered["./cam"], wanted["./cam"], atol=1e-5)


def test_check_and_trace_run_forward_only(small: str) -> None:
    health = hookscope.check(small)
    assert set(health.unmade) >= {"vanishing", "exploding", "unused", "frozen"}
    assert "onnxruntime" in health.unmade["vanishing"]
    trace = hookscope.trace(small, input=X)
    assert [event.module for event in trace.events] == [".", "first.MatMul", "first.Add", "y"]
    assert {event.direction for event in trace.events} == {"forward"}


def test_extract_runs_a_file_with_an_open_batch(tmp_path: Path) -> None:
    path = saved(two_layers("rows"), tmp_path / "a.onnx")
    rows = torch.arange(21.0).reshape(7, 3) - 9
    dataset = torch.utils.data.TensorDataset(rows)
    hookscope.extract(path, tmp_path / "out", layers=["y"], input=dataset, batch=3)
    features = np.asarray(hookscope.load(tmp_path / "out")["y/output"][:])
    expected = session_values(path, {"x": rows.numpy()}, ["y"])["y"]
    assert np.allclose(features, expected, atol=1e-6)


def double(module: nn.Module, args: Any, output: Any) -> Any:
    return output * 2


def change_in_place(module: nn.Module, args: Any, output: Any) -> None:
    output.add_(1)


@pytest.mark.parametrize("hook", [double, change_in_place])
def test_a_hook_that_changes_a_value_is_refused(small: str, hook: Any) -> None:
    with pytest.raises(EditError, match=r"first\.Add"):
        hookscope.capture(small, input=X, hooks={"first.Add": hook})


def test_a_hook_that_looks_is_called(small: str) -> None:
    seen = []
    hookscope.capture(small, input=X, hooks={"y": lambda m, i, o: seen.append(tuple(o.shape))})
    assert seen == [(2, 4)]


class OnCuda:
    """An onnxruntime that says it has CUDA, and notes what it was asked to compute with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, loads: bool = True) -> None:
        import onnxruntime

        self.asked: list[Any] = []
        plain = onnxruntime.InferenceSession

        def opened(model: bytes, options: Any, providers: list[Any]) -> Any:
            self.asked = providers
            session = plain(model, options, providers=["CPUExecutionProvider"])
            names = ["CUDAExecutionProvider"] if loads else []
            session.get_providers = lambda: [*names, "CPUExecutionProvider"]
            return session

        monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
        names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)


def test_a_cuda_device_is_given_to_onnxruntime_by_its_number(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = OnCuda(monkeypatch)
    plain = hookscope.capture(small, input=X)
    assert double.asked == ["CPUExecutionProvider"]
    shot = hookscope.capture(small, input=X, device="cuda:1")
    (first, settings), other = double.asked
    assert (first, other) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert settings["device_id"] == 1
    assert {key: value.device.type for key, value in shot.items()} == dict.fromkeys(plain, "cpu")


def test_an_onnxruntime_that_would_compute_on_the_cpu_instead_is_refused(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentFault, match="onnxruntime"):
        hookscope.capture(small, input=X, device="cuda")
    OnCuda(monkeypatch, loads=False)
    with pytest.raises(EnvironmentFault, match="CPU"):
        hookscope.capture(small, input=X, device="cuda")


def test_the_same_is_refused_in_python(small: str) -> None:
    module = hookscope.load_model(small).module
    for net in (small, module):
        with pytest.raises(RequestError, match="ONNX"):
            hookscope.capture(net, input=X, ops=True)
    with (
        pytest.raises(RequestError, match="ONNX"),
        hookscope.record(module, ops=True),
    ):
        pass
    with pytest.raises(RequestError, match="mode"):
        hookscope.load_model(small).module.train()
    with pytest.raises(RequestError, match="dtypes"):
        hookscope.load_model(small).module.half()


def test_more_than_the_limit_is_refused_before_the_run(small: str) -> None:
    with pytest.raises(CheckFailed, match="takes 128 bytes"):
        hookscope.capture(small, input=X, max_bytes=100)


def test_a_part_cannot_be_called_by_itself(small: str) -> None:
    with pytest.raises(RequestError, match="y"):
        hookscope.load_model(small).module.y(X)
