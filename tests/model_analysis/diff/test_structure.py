"""``hookscope diff --structure`` names the layers that differ, without a run."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model

import hookscope
from hookscope.results.structure_diff import StructureDiff
from hookscope.views import display
from hookscope.views.text.text_table import PIPE
from tests.model_analysis.diff.test_diff import DIGITS, NETS, SAMPLES


class Planted(nn.Module):
    """Layers with names, with numbers, and in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.act = nn.ReLU()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Sequential(OrderedDict(drop=nn.Dropout(0.5), fc=nn.Linear(4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("a model ran")


class Outer(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def compared(a: nn.Module, b: nn.Module) -> StructureDiff:
    found = hookscope.diff(a, b, structure=True)
    assert isinstance(found, StructureDiff)
    assert sum(row.gained for row in found.changes) == found.b.parameters - found.a.parameters
    return found


def listed(found: StructureDiff) -> list[tuple[str, ...]]:
    return [(row.change, *row.names) for row in found.changes]


def notes(found: StructureDiff) -> str:
    return "\n".join(line.plain for line in display.text(found, PIPE))


def put_first(module: nn.Module, name: str) -> None:
    module._modules = {name: module._modules.pop(name), **module._modules}


def reorder(b: Planted) -> None:
    conv, norm, relu = b.body
    b.body = nn.Sequential(norm, conv, relu)


def insert(b: Planted) -> None:
    b.body.insert(1, nn.Dropout(0.1))


def move_into_other_container(b: Planted) -> None:
    b.body.fc = b.head.fc
    del b.head.fc


def move_a_layer_without_tensors(b: Planted) -> None:
    b.drop = b.head.drop
    del b.head.drop


def rename_block(b: Planted) -> None:
    b._modules = {name.replace("body", "trunk"): module for name, module in b._modules.items()}


def rename_block_and_change_it(b: Planted) -> None:
    b.body[0] = nn.Conv2d(4, 4, 5)
    rename_block(b)


def replace_by_a_block(b: Planted) -> None:
    b.stem = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 1))


def put_into_a_new_block(b: Planted) -> None:
    b.stem = nn.Sequential(b.stem, nn.BatchNorm2d(4))


def replace_in_a_sequence(b: Planted) -> None:
    b.body = nn.Sequential(nn.Dropout(0.1), b.body[0], b.body[1], nn.GELU())


def double_the_buffer(b: Planted) -> None:
    b.body[1].running_mean = b.body[1].running_mean.double()


def share(b: Planted) -> None:
    b.act = b.body[2]


PLANTED: dict[str, tuple[Callable[[Planted], object], list[tuple[str, str, str]], str]] = {
    "nothing": (lambda b: None, [], "10 layers in both: all are the same."),
    "a layer added": (
        lambda b: b.add_module("extra", nn.Linear(3, 2)),
        [("added", "", "extra")],
        "Different layers: 1 added. 10 layers in both.",
    ),
    "a layer inserted": (
        insert,
        [
            ("added", "", "body.1"),
            ("renamed", "body.1", "body.2"),
            ("renamed", "body.2", "body.3"),
        ],
        "Dropout(0.1)",
    ),
    "a block removed": (
        lambda b: b.__delattr__("head"),
        [("removed", "head", "")],
        "with 2 layers in it",
    ),
    "a layer moved": (
        move_into_other_container,
        [("moved", "head.fc", "body.fc")],
        "Linear(4, 3)",
    ),
    "a layer without tensors moved": (
        move_a_layer_without_tensors,
        [("moved", "head.drop", "drop")],
        "",
    ),
    "a block renamed": (rename_block, [("renamed", "body", "trunk")], "1 renamed. 10 layers"),
    "a block renamed and changed": (
        rename_block_and_change_it,
        [("renamed", "body", "trunk"), ("changed", "body.0", "trunk.0")],
        "kernel_size (3, 3) to (5, 5); weight 4x4x3x3 to 4x4x5x5",
    ),
    "another kernel": (
        lambda b: b.add_module("stem", nn.Conv2d(1, 8, 5)),
        [("changed", "stem", "stem")],
        "4 to 8; kernel_size (3, 3) to (5, 5); weight 4x1x3x3 to 8x1x5x5; bias 4 to 8",
    ),
    "without a bias": (
        lambda b: b.add_module("stem", nn.Conv2d(1, 4, 3, bias=False)),
        [("changed", "stem", "stem")],
        "bias False only in B; parameter bias 4 float32 only in A",
    ),
    "another argument": (
        lambda b: b.head.add_module("drop", nn.Dropout(0.1)),
        [("changed", "head.drop", "head.drop")],
        "p 0.5 to 0.1",
    ),
    "another class": (
        lambda b: b.add_module("act", nn.GELU()),
        [("changed", "act", "act")],
        "ReLU to GELU",
    ),
    "another class in a sequence that moved on": (
        replace_in_a_sequence,
        [
            ("added", "", "body.0"),
            ("renamed", "body.0", "body.1"),
            ("renamed", "body.1", "body.2"),
            ("renamed", "body.2", "body.3"),
            ("changed", "body.2", "body.3"),
        ],
        "ReLU to GELU",
    ),
    "a block instead of a layer": (
        replace_by_a_block,
        [("added", "", "stem"), ("removed", "stem", "")],
        "with 2 layers in it",
    ),
    "a layer in a new block": (
        put_into_a_new_block,
        [("added", "", "stem"), ("moved", "stem", "stem.0")],
        "",
    ),
    "the dtype of a buffer": (
        double_the_buffer,
        [("changed", "body.1", "body.1")],
        "running_mean float32 to float64",
    ),
    "a parameter instead of a buffer": (
        lambda b: (
            b.body[1]._buffers.pop("running_mean"),
            b.body[1].register_parameter("running_mean", nn.Parameter(torch.zeros(4))),
        ),
        [("changed", "body.1", "body.1")],
        "running_mean buffer to parameter",
    ),
    "numbered layers swapped": (
        reorder,
        [("renamed", "body.0", "body.1"), ("moved", "body.1", "body.0")],
        "",
    ),
    "named layers swapped": (
        lambda b: put_first(b, "act"),
        [("moved", "act", "act")],
        "from place 2 to 1 in its parent",
    ),
    "tied weights": (
        lambda b: setattr(b.body[0], "bias", b.stem.bias),
        [("changed", "body.0", "body.0")],
        "bias tied to stem.bias in B alone",
    ),
    "a shared layer": (
        share,
        [("changed", "act", "act"), ("removed", "body.2", "")],
        "also called body.2 in B alone",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_each_planted_change_is_named(planted: str) -> None:
    plant, expected, text = PLANTED[planted]
    a, b = Planted(), Planted()
    plant(b)
    found = compared(a, b)
    assert listed(found) == expected
    assert found.same is (not expected)
    assert text in notes(found)
    assert len(listed(compared(b, a))) == len(expected)


def test_numbered_layers_of_one_class_are_swapped() -> None:
    a, b = nn.Linear(4, 8), nn.Linear(8, 4)
    found = compared(nn.Sequential(a, b), nn.Sequential(b, a))
    assert listed(found) == [("renamed", "0", "1"), ("moved", "1", "0")]


def test_the_map_names_a_layer_that_became_another_one_elsewhere() -> None:
    a, b = Planted(), Planted()
    b.out = nn.Linear(4, 5)
    del b.head.fc
    found = hookscope.diff(a, b, structure=True, map={"head.fc": "out"})
    assert listed(found) == [("changed", "head.fc", "out")]


def test_a_model_inside_another_one_moved() -> None:
    found = compared(Planted(), Outer(Planted()))
    assert listed(found) == [("added", "", "."), ("moved", ".", "model")]
    assert listed(compared(Outer(Planted()), Planted())) == [
        ("removed", ".", ""),
        ("moved", "model", "."),
    ]


@pytest.mark.parametrize(
    "names",
    [
        *(("resnet18", "resnet50"), ("vgg11", "vgg16_bn"), ("alexnet", "mobilenet_v2")),
        *(("swin_t", "swin_s"), ("vit_b_16", "vit_l_16"), ("densenet121", "efficientnet_b0")),
    ],
)
def test_every_layer_of_two_models_is_matched_or_listed(names: tuple[str, str]) -> None:
    with torch.device("meta"):
        a, b = (get_model(name, weights=None) for name in names)
    found = compared(a, b)  # the parameters of the rows are those that one model has more
    alone = [
        sum(row.modules for row in found.changes if row.change == change)
        for change in ("removed", "added")
    ]
    modules = [len(list(model.modules())) for model in (a, b)]
    assert [n - found.matched for n in modules] == alone


def test_the_blocks_that_a_larger_model_has_are_named_by_the_command(run) -> None:
    done = run("diff", "resnet18", "resnet34", "--structure")
    assert (done.rc, done.stderr) == (1, "")
    names = [
        f"layer{n}.{block}" for n, end in enumerate((3, 4, 6, 3), 1) for block in range(2, end)
    ]
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:-3]] == [[name, "added"] for name in names]
    assert lines[-3] == "Different layers: 8 added. 68 layers in both."
    same = run("diff", "resnet18", "resnet18", "--structure", "--json")
    assert (same.rc, json.loads(same.stdout)["same"]) == (0, True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("file", [*DIGITS[1:], f"{SAMPLES}/digits.onnx"])
def test_a_file_of_the_same_model_has_the_same_layers(run, file: str) -> None:
    for words in (DIGITS[0], file), (file, DIGITS[0]):
        done = run("diff", *words, "--structure", "-q")
        assert done.rc == 0, done.stdout
        lines = done.stdout.splitlines()
        assert lines[0] == "7 layers in both: all are the same."
        assert lines[-1].endswith("without the arguments of its layers; these are not compared.")
    done = run("diff", f"{NETS}:Net", file, "--structure", "-q")
    assert done.rc == 1 and "classes" not in done.stdout.splitlines()[-1]


class Exported(nn.Module):
    """What an exporter folds, leaves out, or does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Identity()
        block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.ModuleList([block])
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(self.skip(x))
        return self.fc(self.drop(x).mean((2, 3)))


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_what_an_exporter_folded_is_no_difference(tmp_path: Path, dynamo: bool) -> None:
    net, file = Exported().eval(), tmp_path / "net.onnx"
    x = torch.randn(1, 1, 8, 8)
    torch.onnx.export(net, (x,), file, dynamo=dynamo, verbose=False)
    found = hookscope.diff(net, file, structure=True)
    assert isinstance(found, StructureDiff) and found.same
    assert {row.names[0] for row in found.changes} == {
        *("skip", "drop", "blocks.0.0" if dynamo else "blocks.0.1")
    }
    assert all(row.reason for row in found.changes)
    net.fc = nn.Linear(4, 5)
    assert [
        row.names[0] for row in hookscope.diff(net, file, structure=True).changes if not row.reason
    ] == ["fc"]


def test_an_exported_program_without_some_classes_has_the_same_layers() -> None:
    net = Exported().eval()
    program = torch.export.export(net, (torch.randn(1, 1, 8, 8),))
    found = hookscope.diff(net, program, structure=True)
    assert found.same and not found.changes and found.b.unknown == 2
    net.blocks[0].append(nn.GELU())
    changed = hookscope.diff(net, program, structure=True)
    assert listed(changed) == [("removed", "blocks.0.3", "")]


def test_layers_are_selected_and_renamed_by_the_map(run) -> None:
    a, b = Planted(), Planted()
    rename_block_and_change_it(b)
    del b.head
    found = hookscope.diff(a, b, structure=True, map={"body": "trunk"}, layers="trunk*")
    assert listed(found) == [("changed", "body.0", "trunk.0")]
    inside = hookscope.diff(a, b, structure=True, layers="head.*")
    assert listed(inside) == [("removed", "head.drop", ""), ("removed", "head.fc", "")]
    words = ("diff", f"{NETS}:single", f"{NETS}:Renamed", "--structure", "--map", "stem=first")
    assert run(*words, "--map", "body=trunk", "--type", "Conv2d").rc == 0
    done = run(*words)
    assert done.rc == 1 and [line.split()[:3] for line in done.stdout.splitlines()[1:2]] == [
        ["(model)", "changed", "-"]
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*DIGITS[:2], "--dtype", "float16"), "--dtype is for models, and --structure runs none."),
        (
            (*DIGITS[:2], "--input", f"{SAMPLES}/five.png"),
            "--input is for models, and --structure runs none.",
        ),
        ((*DIGITS[:2], "--atol", "1"), "--atol is for models and captures and "),
        ((*DIGITS[:2], "--layer", "conv9"), "matches 'conv9'"),
        (
            (*DIGITS[:2], "--map", "conv9=x"),
            "A has no layer to compare whose name begins with 'conv9'.",
        ),
        (
            (*DIGITS[:2], "--map", "conv1=conv9"),
            "B has no layer to compare whose name begins with 'conv9'.",
        ),
        ((DIGITS[0], "resnt18"), "B: There is no model called 'resnt18'."),
        (
            (f"{SAMPLES}/five.safetensors",) * 2,
            "--structure is for models, and A and B are captures.",
        ),
        ((f"{SAMPLES}/run",) * 2, "--structure is for models, and A and B are training runs."),
        ((f"{SAMPLES}/features",) * 2, "--structure is for models, and A and B are features"),
        ((f"{SAMPLES}/digits.safetensors",) * 2, "--structure is for models, and A and B are w"),
        ((DIGITS[0], f"{SAMPLES}/digits.safetensors"), "for models, and B has only weights."),
    ],
)
def test_what_structure_does_not_apply_to_is_refused(refused, words, message: str) -> None:
    assert message in refused("diff", *words, "--structure")
