"""Trees and captures to render, with values that are the same on every machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import describe_model
from hookscope.results.ablation import (
    Ablation,
    BaselineMetrics,
    LayerAblation,
    rank_ablations,
)
from hookscope.results.diff_result import Diff, ErrorMetrics, TensorComparison, UnmatchedTensor
from hookscope.results.grad_check import Derivative, GradCheck, GradientComparison
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.results.records import Absent, Coverage, ExecutedModule, UnexecutedModule
from hookscope.results.sweep import SkippedLayer
from hookscope.results.trace import Trace
from hookscope.results.trace_events import BACKWARD, FORWARD, TraceEvent
from hookscope.specs.plot_options import PlotOptions
from hookscope.stores.capture_file import CaptureFile, open_capture
from hookscope.views.images.feature_maps import FeatureMaps, read_feature_maps
from hookscope.views.images.tensor_view import TensorView, read_tensor_view

T = TypeVar("T")
LABELS = ("great white shark", "tabby", "crème brûlée", "stole", "loggerhead")
ODD_NAMES = (
    ":x:",
    "[red]bold[/red]",
    "a" * 300,
    "naïve",
    "層",
    "two\nlines",
    "esc\x1b[31m",
    "rtl\u202e",
    "lone\ud800",
    "trailing ",
    "🙂" * 50,
)


def small_tree() -> ModuleTree:
    """A model with a frozen part, a shared module, and one that holds parameters of its own."""
    shared = nn.Linear(8, 8)
    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)))
    model.add_module("block", nn.ModuleDict({"first": shared, "second": nn.ReLU(inplace=True)}))
    model.add_module("attention", nn.MultiheadAttention(8, 2))
    model.add_module("head", shared)
    model.stem[0].requires_grad_(False)
    return describe_model(model, "small.py:make")


def with_run(tree: ModuleTree) -> ModuleTree:
    """The tree as after a pass: the container ``block`` never called, the head called twice."""
    runs = {"block": LayerRun(0, (), 0), "block.first": LayerRun(2, ("1x8", "8x1x2"), 236_027_904)}
    usual = LayerRun(1, ("1x8x15x15",), 1_555)
    nodes = tuple(replace(node, run=runs.get(node.name, usual)) for node in tree.modules)
    return ModuleTree(tree.model, nodes, nodes[0])


def ramp(*shape: int) -> Tensor:
    """Values that rise in equal steps from -1, in the shape asked for."""
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=torch.float32) / 64 - 1).reshape(shape)


def put(capture: Capture, name: str, tensor: Tensor, **other: object) -> None:
    """Record ``tensor`` as an output of ``name`` unless told otherwise."""
    origin = {"type": "Conv2d", "call": 1, "what": "output", "kind": "output", **other}
    capture.put(tensor, module=name, **origin)  # type: ignore[arg-type]


def outputs() -> Capture:
    """Outputs as of two blocks of a classifier, one value of them not a number."""
    capture = Capture()
    put(capture, "layer3.0.conv1", ramp(1, 16, 4, 4))
    put(capture, "layer3.0.relu", ramp(1, 16, 4, 4).relu(), type="ReLU")
    broken = ramp(1, 16, 4, 4)
    broken.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), float("nan")])
    put(capture, "layer3.0.downsample.0", broken)
    put(capture, "layer3.0.relu", ramp(1, 16, 4, 4).relu() * 2, type="ReLU", call=2)
    put(capture, "head", ramp(1, 4), type="Linear", aliases=("decoder",))
    capture.coverage = Coverage(
        (
            ExecutedModule("layer3.0.conv1", "Conv2d", 1),
            ExecutedModule("layer3.0.relu", "ReLU", 2),
            ExecutedModule("layer3.0.downsample.0", "Conv2d", 1),
            ExecutedModule("head", "Linear", 1),
        ),
        (
            UnexecutedModule(
                "layer3.0.blocks", "ModuleList", "a container: its parent runs what is in it"
            ),
        ),
    )
    top = [{"label": x, "index": i * 7, "probability": 0.5**i} for i, x in enumerate(LABELS, 1)]
    capture.metadata = {
        "command": "capture",
        "model": {"spec": "resnet18"},
        "inputs": [{"spec": "img.png"}],
        "top": [top],
        "verified": True,
    }
    return capture


def gradients() -> Capture:
    """Gradients in backward order: sound ones, one vanishing, one exploding, some that are not."""
    capture = Capture()
    grad = {"what": "output.grad", "kind": "output.grad"}
    weight = {"what": "weight.grad", "kind": "param.grad", "weight_norm": 2.0}
    put(capture, "fc", ramp(1, 8), type="Linear", **grad)
    put(capture, "fc", ramp(8, 4), type="Linear", **weight)
    put(capture, "layer1.0.conv2", ramp(1, 8, 4, 4) * 1e-6, **grad)
    put(capture, "layer1.0.conv1", ramp(1, 8, 4, 4) * 1e6, **grad)
    put(capture, "layer1.0.conv1", ramp(8, 3, 3, 3), **weight)
    capture.absent = (
        Absent("layer1.0.bn1", "BatchNorm2d", 1, "weight.grad", "param.grad", "frozen"),
        Absent("aux", "Linear", 1, "output.grad", "output.grad", "outside the loss"),
        Absent("layer1.0.mask", "Mask", 1, "output.grad", "output.grad", "integer"),
        Absent("late", "Linear", 1, "output.grad", "output.grad", "never ran"),
    )
    executed = ("fc", "layer1.0.conv2", "layer1.0.conv1", "layer1.0.bn1", "aux", "layer1.0.mask")
    capture.coverage = Coverage(
        tuple(ExecutedModule(name, "Conv2d", 1) for name in executed),
        (UnexecutedModule("late", "Linear", "a branch not taken in eval mode"),),
    )
    capture.metadata = {
        "command": "grads",
        "loss": {
            "name": "kl",
            "formula": "KL(t || softmax(x))",
            "reduction": "batchmean",
            "raw": False,
            "target": "3 (tiger shark)",
            "value": 6.907755,
        },
    }
    return capture


def edited() -> Capture:
    """Outputs of a model that was edited at its first layer, beside those of the unedited run."""
    capture = outputs()
    put(capture, "stem", ramp(1, 8, 4, 4), what="output.unedited", kind="output.unedited")
    put(capture, "stem", ramp(1, 8, 4, 4) / 2)
    edits = [
        {"edit": "stem=scale:0.5", "changed": ["stem/output"]},
        {"edit": "stem[3,7-9]=zero", "changed": ["stem/output"]},
    ]
    moved = {"largest": 1.25, "relative": 0.5}
    effect = {
        "output": [{"name": "output", **moved}],
        "top": {
            "unedited": capture.metadata["top"],
            "edited": [list(reversed(capture.metadata["top"][0]))],
        },
        "drift": [
            {"key": "head/output", **moved},
            {"key": "layer3.0.relu:2/output", "largest": 0.0, "relative": 0.0},
            {"key": "layer3.0.conv1/output", "largest": None, "relative": None},
        ],
    }
    capture.metadata |= {"edits": edits, "effect": effect}
    return capture


def stepped() -> Capture:
    """Gradients and updates of a step, an edited gradient and an emitted number among them."""
    capture = gradients()
    update = {"what": "weight.update", "kind": "param.update", "weight_norm": 2.0}
    put(capture, "fc", ramp(8, 4) * -0.1, type="Linear", **update)
    put(capture, "layer1.0.conv1", ramp(8, 3, 3, 3) * -0.1, **update)
    put(capture, ".", torch.tensor(0.1), type="Net", what="lr", kind="emitted")
    arguments = {"lr": 0.1, "momentum": 0.9, "foreach": None, "nesterov": False}
    capture.metadata |= {
        "optimizer": {"name": "sgd", "class": "SGD", "arguments": arguments},
        "grad_edits": [{"edit": "fc=clip:1", "changed": ["fc/output.grad"]}],
    }
    return capture


def trace() -> Trace:
    """A block of two layers forward and backward, a layer called twice."""
    shape = ((1, 64, 56, 56),)
    rows = [
        (FORWARD, "layer1.0", "BasicBlock", 1, 0, 0.0, 3.25, 0.25),
        (FORWARD, "layer1.0.conv1", "Conv2d", 1, 1, 0.25, 1.5, 1.5),
        (FORWARD, "layer1.0.relu", "ReLU", 2, 1, 1.75, 1.5, 1.5),
        (BACKWARD, "layer1.0", "BasicBlock", 1, 0, 4.0, 1234.5, 0.125),
        (BACKWARD, "layer1.0.relu", "ReLU", 2, 1, 4.0, 1234.375, 1234.375),
    ]
    events = tuple(
        TraceEvent(way, name, kind, call, depth, shape, shape, 802_816, start, time, own)
        for way, name, kind, call, depth, start, time, own in rows
    )
    executed = (
        ExecutedModule("layer1.0", "BasicBlock", 1),
        ExecutedModule("layer1.0.relu", "ReLU", 2),
    )
    return Trace(events, Coverage(executed), {"loss": gradients().metadata["loss"]})


def checked() -> GradCheck:
    """A backward that is right by its first input and wrong by its second."""
    right = Derivative((0, 2), (0, 2), 1.0, 1.0000001, 1e-7)
    wrong = [Derivative((n,), (n, n), 0.5, 1.0 + n, 0.5 + n) for n in range(3)]
    comparisons = (
        GradientComparison("input.0", "output", (2, 3), (2, 3), 36, 0, (right,)),
        GradientComparison(
            "input.scale", "output", (3,), (2, 3), 18, 6, tuple(wrong), "no gradient came"
        ),
    )
    return GradCheck(comparisons, 1e-6, 1e-5, 1e-3, {"command": "gradcheck"})


def compared() -> Diff:
    """Pairs of every verdict and every way to be matched, and tensors without a partner."""
    inf, same = float("inf"), ((1, 64, 56, 56),) * 2
    equal = ErrorMetrics(0.0, 0.0, 1.0, inf)
    near = ErrorMetrics(8.9261705e-07, 0.00148562269, 0.99999999, 129.757452, 0, 1000)
    far = ErrorMetrics(0.0061718, inf, -0.99999585, -50.81011127, 5846, 65536, nan_b=3)
    floats = ("float32", "float32")
    numbers = (200_704, near, 1e-5, 1.3e-6)
    rows = (
        TensorComparison(
            "conv1/output",
            "conv1/output",
            "name",
            "Conv2d",
            same,
            floats,
            200_704,
            equal,
            0,
            0,
            "equal",
        ),
        TensorComparison(
            "layer1.0.bn1/output",
            "body.0.bn1/output",
            "map",
            "BatchNorm2d",
            same,
            floats,
            *numbers,
            "close",
        ),
        TensorComparison(
            "layer1.0.relu:2/output",
            "body.0.relu_2/output",
            "order",
            "ReLU",
            same,
            ("float32", "bfloat16"),
            200_704,
            far,
            1e-5,
            1.6e-2,
            "differs",
            "NaN in B alone: 3",
        ),
        TensorComparison(
            "fc/output",
            "fc/output",
            "name",
            "Linear",
            ((1, 1000), (1, 10)),
            floats,
            1000,
            ErrorMetrics(),
            1e-5,
            1.3e-6,
            "differs",
            "shape 1x1000 in A, 1x10 in B",
        ),
    )
    lone = (UnmatchedTensor("layer1.0.downsample.0/output", "Conv2d", (1, 64, 56, 56), "float32"),)
    other = (UnmatchedTensor("aux/output", "Linear", (1, 10), "float32"),)
    return Diff(rows, lone, other, False, False, {"file": "a"}, {"file": "b"})


def ablation() -> Ablation:
    """Channels ablated: more than a terminal shows, one not a number, one that failed."""
    name = "layer1.0.conv2"
    made = [
        LayerAblation(name, "Conv2d", n, (-1) ** n / (n + 3), n / 64, 1 / (n + 1), n % 3)
        for n in range(32)
    ]
    nan, inf = float("nan"), float("inf")
    made += [
        LayerAblation("layer1.0.norm", "Normalize", 0, nan, nan, nan, 2),
        LayerAblation("layer1.0.norm", "Normalize", 1, -inf, inf, inf, 2),
        LayerAblation(
            "fc", "Linear", 0, failed="The forward pass failed in layer fc (Linear): no."
        ),
    ]
    coverage = Coverage(
        tuple(
            ExecutedModule(x, "Conv2d", 1) for x in (name, "layer1.0.norm", "fc", "layer1.0.mask")
        ),
        (UnexecutedModule("late", "Linear", "a branch not taken in eval mode"),),
    )
    return Ablation(
        by="mean",
        edit="mean:channel",
        rank="score",
        total=len(made),
        clean=BaselineMetrics("argmax: 3 (tiger shark)", 11.089760780334473, 0.175, "ce", 2),
        ablations=rank_ablations(made, "score"),
        left_out=(SkippedLayer("layer1.0.mask", "Mask", "it gives no floating-point tensor"),),
        coverage=coverage,
        metadata={"command": "ablate"},
    )


def opened(read: Callable[[CaptureFile], T]) -> T:
    """What ``read`` makes of the outputs in a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.safetensors")
        outputs().save(path)
        return read(open_capture(path))


def looked() -> TensorView:
    """A part of a tensor with entries that are not finite."""
    return opened(lambda file: read_tensor_view(file, "layer3.0.downsample.0/output", (0,)))


def maps() -> FeatureMaps:
    """Six of its maps."""
    key, options = "layer3.0.downsample.0/output", PlotOptions(count=6)
    return opened(lambda file: read_feature_maps(file, key, options=options))
