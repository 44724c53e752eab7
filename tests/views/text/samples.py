"""Trees and captures to render, with values that are the same on every machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from hookscope.results.health import Finding, Health
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.results.records import Absent, Coverage, ExecutedModule, UnexecutedModule
from hookscope.results.sweep import SkippedLayer
from hookscope.results.trace import Trace
from hookscope.results.trace_events import BACKWARD, FORWARD, TraceEvent
from hookscope.specs.catalog import ModelInfo

LABELS = ("great white shark", "tabby", "crème brûlée", "stole", "loggerhead")
ODD_NAMES = (
    *(":x:", "[red]bold[/red]", "a" * 300, "naïve", "層", "two\nlines", "esc\x1b[31m"),
    *("rtl\u202e", "lone\ud800", "trailing ", "🙂" * 50),
)


def same_as_golden(name: str, lines: Iterable[str]) -> None:
    """Compare a text with a golden file; HOOKSCOPE_REFRESH_GOLDENS=1 writes the file first."""
    path = Path(__file__).parent / "goldens" / f"{name}.txt"
    text = "".join(f"{line}\n" for line in lines)
    if os.environ.get("HOOKSCOPE_REFRESH_GOLDENS"):
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode(), f"{path.name} differs"


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


def captured(
    tensors: Mapping[str, Tensor], type: str = "X", kind: str = "output", **metadata: Any
) -> Capture:
    """A recording of these tensors, one of each layer."""
    capture = Capture()
    for name, tensor in tensors.items():
        capture.put(tensor, module=name, type=type, call=1, what=kind, kind=kind)
    capture.metadata |= metadata
    return capture


def coverage(*modules: str, idle: tuple[str, str, str]) -> Coverage:
    return Coverage(
        tuple(ExecutedModule(name, "Conv2d", 1) for name in modules), (UnexecutedModule(*idle),)
    )


CONTAINER = ("layer3.0.blocks", "ModuleList", "a container")
LATE = ("late", "Linear", "not taken")


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
    names = ("layer3.0.conv1", "layer3.0.relu", "layer3.0.downsample.0", "head")
    capture.coverage = coverage(*names, idle=CONTAINER)
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
    capture.coverage = coverage(*executed, idle=LATE)
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
        "command": "step",
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
    executed = Coverage(tuple(ExecutedModule(row[1], row[2], 1) for row in rows[:3:2]))
    return Trace(events, executed, {"loss": gradients().metadata["loss"]})


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
    inf, same, other = float("inf"), ((1, 64, 56, 56),) * 2, ((1, 1000), (1, 10))
    floats, half = ("float32", "float32"), ("float32", "bfloat16")
    equal = ErrorMetrics(0.0, 0.0, 1.0, inf)
    near = ErrorMetrics(8.9261705e-07, 0.00148562269, 0.99999999, 129.757452, 0, 1000)
    far = ErrorMetrics(0.0061718, inf, -0.99999585, -50.81011127, 5846, 65536, nan_b=3)
    pairs: list[tuple[Any, ...]] = [
        ("conv1", "conv1", "name", "Conv2d", same, floats, equal, "equal", ""),
        ("layer1.0.bn1", "body.0.bn1", "map", "BatchNorm2d", same, floats, near, "close", ""),
        ("layer1.0.relu:2", "body.0.relu_2", "order", "ReLU", same, half, far, "differs", "NaN: 3"),
        ("fc", "fc", "name", "Linear", other, floats, ErrorMetrics(), "differs", "another shape"),
    ]
    rows = tuple(
        TensorComparison(f"{a}/output", f"{b}/output", *how, 200_704, errors, 1e-5, 1.3e-6, *told)
        for a, b, *how, errors, told in ((*pair[:7], pair[7:]) for pair in pairs)
    )
    lone = UnmatchedTensor("layer1.0.downsample.0/output", "Conv2d", (1, 64, 56, 56), "float32")
    alone = UnmatchedTensor("aux/output", "Linear", (1, 10), "float32")
    return Diff(rows, (lone,), (alone,), False, False, {"file": "a"}, {"file": "b"})


def ablation() -> Ablation:
    """Channels ablated: more than a terminal shows, one not a number, one that failed."""
    name = "layer1.0.conv2"
    made = [
        LayerAblation(name, "Conv2d", n, (-1) ** n / (n + 3), n / 64, 1 / (n + 1), n % 3)
        for n in range(32)
    ]
    nan, inf = float("nan"), float("inf")
    norm = ("layer1.0.norm", "Normalize")
    made += [
        LayerAblation(*norm, 0, nan, nan, nan, 2),
        LayerAblation(*norm, 1, -inf, inf, inf, 2),
        LayerAblation("fc", "Linear", 0, failed="The forward pass failed in fc: no."),
    ]
    return Ablation(
        by="mean",
        edit="mean:channel",
        rank="score",
        total=len(made),
        clean=BaselineMetrics("argmax: 3 (tiger shark)", 11.089760780334473, 0.175, "ce", 2),
        ablations=rank_ablations(made, "score"),
        left_out=(SkippedLayer("layer1.0.mask", "Mask", "no floating-point tensor"),),
        coverage=coverage(name, norm[0], "fc", "layer1.0.mask", idle=LATE),
        metadata={"command": "ablate"},
    )


def health() -> Health:
    """Findings of three levels, one of them in several layers, and a check that was not made."""
    layer, others = "stage1.block2.attention.projection", ("b", "c", "d", "e\x1b[1m")
    found = (
        Finding("nan", "error", layer, "NaN first appears here, in log()", 1, 0, "Fix."),
        Finding("vanishing", "warning", "a", "it vanishes", 1e-5, 1e-4, "", others),
        Finding("tied", "note", "ünïcode", "one tensor", 1, None),
    )
    model = {"spec": "a b.py:Net", "source": "file"}
    return Health(
        found,
        ("nan", "tied", "vanishing"),
        {"unused": "no backward pass"},
        {"dead": 0.95},
        {"model": model, "versions": {"hookscope": "1"}, "loss": gradients().metadata["loss"]},
    )


def every_kind() -> Capture:
    """Tensors of every kind and of two devices, a batch of classes, attention of three origins."""
    nan, lost = float("nan"), torch.full((4,), float("nan"), dtype=torch.float16)
    capture = Capture()
    put(capture, "ints", torch.arange(5))
    put(capture, "bools", torch.tensor([True, False]))
    put(capture, "scalar", torch.tensor(1.5, dtype=torch.bfloat16))
    put(capture, "empty", torch.zeros(0, 3))
    put(capture, "lost", lost)
    put(capture, "big", torch.tensor([2**62, 1]))
    capture._records["big/output"] = replace(capture._records["big/output"], device="meta")
    capture.absent = (Absent("a", "Module", 1, "attention", "attention", "hidden"),)
    idle = [UnexecutedModule(f"s{i}", "Linear", "a fused kernel") for i in range(5)]
    capture.coverage = Coverage(
        (ExecutedModule("ints", "ReLU", 2), ExecutedModule("bools", "ReLU", 1)),
        (*idle, UnexecutedModule("list", "ModuleList", "a container")),
        "bools",
        ("b", "c", "d", "e", "f"),
    )
    entry = {"label": "tabby", "index": 281, "probability": 0.25}
    capture.metadata = {
        "top": [[entry], [{"label": "", "index": 7, "probability": nan}]],
        "inputs": [{"spec": "a.png"}, {"spec": "b.png"}],
        "attention": [
            {"key": "b/attention", "from": "a softmax"},
            {"key": "c/attention", "from": "kernel", "difference": 2e-6, "tolerance": 1e-4},
            {"key": "d/attention", "from": "kernel", "difference": 1e-3, "tolerance": 5e-3},
        ],
    }
    return capture


def ended(command: str) -> Capture:
    """Nothing recorded of a run that ended after the first call of a layer."""
    capture = Capture()
    ran = (ExecutedModule("a", "ReLU", 1),)
    capture.coverage = Coverage(ran, (), "a", calls_complete=command == "grads")
    effect = {"output": [{"name": "output", "largest": 1, "relative": 0.5}]}
    loss = {"name": "sum", "formula": "sum", "value": "NaN", "target": ""}
    capture.metadata = {"command": command, "attention": [], "loss": loss}
    capture.metadata |= {"hooks": [{}], "grad_edits": [{}], "effect": effect}
    return capture


def models() -> list[ModelInfo]:
    weights, size = ("IMAGENET1K_V1", "IMAGENET1K_V2"), "1x3x224x224"
    return [
        ModelInfo("alexnet", "classification", 61_100_840, weights[:1], size),
        ModelInfo("resnet50", "classification", 25_557_032, weights, size),
        ModelInfo("ssdlite320_mobilenet_v3_large", "detection", 3_440_060, (), "3x320x320"),
    ]


SAMPLES: dict[str, Callable[[], Any]] = {
    "ablate": ablation,
    "capture": outputs,
    "check": health,
    "diff": compared,
    "gradcheck": checked,
    "grads": gradients,
    "step": stepped,
    "trace": trace,
    "tree": small_tree,
}
