"""``hookscope diff --structure`` names the layers that differ, without a run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model

import hookscope
from hookscope.results.structure_diff import StructureDiff
from hookscope.views import display
from hookscope.views.text.text_table import PIPE
from tests.model_analysis.diff.test_diff import DIGITS, NETS, SAMPLES
from tests.zoo import Module

Change = Callable[[Any], object]


def planted() -> Any:
    """Layers with names, with numbers, and in containers; the model does not run."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        raise AssertionError("a model ran")

    return Module(
        forward,
        stem=nn.Conv2d(1, 4, 3),
        act=nn.ReLU(),
        body=nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        head=nn.Sequential(OrderedDict(drop=nn.Dropout(0.5), fc=nn.Linear(4, 3))),
    )


def put(name: str, layer: nn.Module) -> Change:
    """A change: a layer under a name, which may be that of another one."""

    def change(b: Any) -> None:
        owner, _, last = name.rpartition(".")
        b.get_submodule(owner).add_module(last, layer)

    return change


def move(old: str, new: str) -> Change:
    def change(b: Any) -> None:
        owner, _, last = old.rpartition(".")
        put(new, b.get_submodule(owner)._modules.pop(last))(b)

    return change


def sequence(*layers: int | nn.Module) -> Change:
    """A change: the body consists of its old layers, by their numbers, and of new ones."""

    def change(b: Any) -> None:
        b.body = nn.Sequential(*(b.body[x] if isinstance(x, int) else x for x in layers))

    return change


def compared(a: nn.Module, b: nn.Module, **options: Any) -> StructureDiff:
    found = hookscope.diff(a, b, structure=True, **options)
    assert isinstance(found, StructureDiff)
    return found


def listed(found: StructureDiff) -> str:
    """The rows as "change A B", with a dash where a layer is in one model alone."""
    return ", ".join(
        " ".join((row.change, *(n or "-" for n in row.names))) for row in found.changes
    )


def rename_block(b: Any) -> None:
    b._modules = {name.replace("body", "trunk"): module for name, module in b._modules.items()}


def rename_block_and_change_it(b: Any) -> None:
    put("body.0", nn.Conv2d(4, 4, 5))(b)
    rename_block(b)


def put_act_first(b: Any) -> None:
    b._modules = {"act": b._modules.pop("act"), **b._modules}


def make_the_mean_a_parameter(b: Any) -> None:
    del b.body[1].running_mean
    b.body[1].running_mean = nn.Parameter(torch.zeros(4))


MOVED_ON = "renamed body.1 body.2, renamed body.2 body.3"
# Of each change: the rows as "change A B", and the part of the text that says what is other.
PLANTED: dict[str, tuple[Change, str, str]] = {
    "nothing": (lambda b: None, "", "10 layers in both"),
    "a layer added": (put("extra", nn.Linear(3, 2)), "added - extra", "1 added. 10"),
    "a layer inserted": (
        sequence(0, nn.Dropout(0.1), 1, 2),
        *(f"added - body.1, {MOVED_ON}", "Dropout(0.1)"),
    ),
    "a block removed": (lambda b: b._modules.pop("head"), "removed head -", "2 layers in it"),
    "a layer moved": (move("head.fc", "body.fc"), "moved head.fc body.fc", "Linear(4, 3)"),
    "a layer without tensors moved": (move("head.drop", "drop"), "moved head.drop drop", ""),
    "a block renamed": (rename_block, "renamed body trunk", "1 renamed. 10 layers"),
    "a block renamed and changed": (
        rename_block_and_change_it,
        "renamed body trunk, changed body.0 trunk.0",
        "kernel_size (3, 3) to (5, 5); weight 4x4x3x3 to 4x4x5x5",
    ),
    "another kernel": (
        put("stem", nn.Conv2d(1, 8, 5)),
        "changed stem stem",
        "4 to 8; kernel_size (3, 3) to (5, 5); weight 4x1x3x3 to 8x1x5x5; bias 4 to 8",
    ),
    "without a bias": (
        put("stem", nn.Conv2d(1, 4, 3, bias=False)),
        *("changed stem stem", "bias False only in B; parameter bias 4 float32 only in A"),
    ),
    "another argument": (
        put("head.drop", nn.Dropout(0.1)),
        *("changed head.drop head.drop", "p 0.5 to 0.1"),
    ),
    "another class": (put("act", nn.GELU()), "changed act act", "ReLU to GELU"),
    "another class in a sequence that moved on": (
        sequence(nn.Dropout(0.1), 0, 1, nn.GELU()),
        f"added - body.0, renamed body.0 body.1, {MOVED_ON}, changed body.2 body.3",
        "ReLU to GELU",
    ),
    "a block instead of a layer": (
        put("stem", nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 1))),
        *("added - stem, removed stem -", "with 2 layers in it"),
    ),
    "a layer in a new block": (
        lambda b: put("stem", nn.Sequential(b.stem, nn.BatchNorm2d(4)))(b),
        *("added - stem, moved stem stem.0", ""),
    ),
    "the dtype of a buffer": (
        lambda b: setattr(b.body[1], "running_mean", b.body[1].running_mean.double()),
        *("changed body.1 body.1", "running_mean float32 to float64"),
    ),
    "a parameter instead of a buffer": (
        make_the_mean_a_parameter,
        *("changed body.1 body.1", "running_mean buffer to parameter"),
    ),
    "numbered layers swapped": (
        sequence(1, 0, 2),
        *("renamed body.0 body.1, moved body.1 body.0", ""),
    ),
    "named layers swapped": (put_act_first, "moved act act", "from place 2 to 1"),
    "tied weights": (
        lambda b: setattr(b.body[0], "bias", b.stem.bias),
        *("changed body.0 body.0", "bias tied to stem.bias"),
    ),
    "a shared layer": (
        lambda b: setattr(b, "act", b.body[2]),
        *("changed act act, removed body.2 -", "also called body.2"),
    ),
}


@pytest.mark.parametrize("change", PLANTED)
def test_each_planted_change_is_named(change: str) -> None:
    plant, expected, words = PLANTED[change]
    a, b = planted(), planted()
    plant(b)
    found = compared(a, b)
    assert listed(found) == expected
    assert found.same is (not expected)
    assert sum(row.gained for row in found.changes) == found.b.parameters - found.a.parameters
    assert words in "\n".join(line.plain for line in display.text(found, PIPE))
    assert len(compared(b, a).changes) == len(found.changes)


def test_numbered_layers_of_one_class_are_swapped() -> None:
    a, b = nn.Linear(4, 8), nn.Linear(8, 4)
    found = compared(nn.Sequential(a, b), nn.Sequential(b, a))
    assert listed(found) == "renamed 0 1, moved 1 0"


def test_the_map_names_a_layer_that_became_another_one_elsewhere() -> None:
    b = planted()
    b.out = nn.Linear(4, 5)
    del b.head.fc
    assert listed(compared(planted(), b, map={"head.fc": "out"})) == "changed head.fc out"


def test_a_model_inside_another_one_moved() -> None:
    outer = Module(model=planted())
    assert listed(compared(planted(), outer)) == "added - ., moved . model"
    assert listed(compared(outer, planted())) == "removed . -, moved model ."


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
    found = compared(a, b)
    assert sum(row.gained for row in found.changes) == found.b.parameters - found.a.parameters
    alone = [
        sum(row.modules for row in found.changes if row.change == change)
        for change in ("removed", "added")
    ]
    modules = [len(list(model.modules())) for model in (a, b)]
    assert [n - found.matched for n in modules] == alone


@pytest.mark.parametrize("file", [*DIGITS[1:], f"{SAMPLES}/digits.onnx"])
def test_a_file_of_the_same_model_has_the_same_layers(file: str) -> None:
    for sides in (DIGITS[0], file), (file, DIGITS[0]):
        found = compared(*sides)
        assert found.same and (found.matched, found.changes) == (7, ())
        last = list(display.text(found, PIPE))[-1].plain
        assert "without the arguments" in last
    assert not compared(f"{NETS}:Net", file).same


def exported_net() -> Any:
    """What an exporter folds, leaves out, or does not name."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(self.skip(x))
        return self.fc(self.drop(x).mean((2, 3)))

    block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    parts = {"skip": nn.Identity(), "blocks": nn.ModuleList([block]), "drop": nn.Dropout(0.1)}
    return Module(forward, **parts, fc=nn.Linear(4, 3)).eval()


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_what_an_exporter_folded_is_no_difference(tmp_path: Path, dynamo: bool) -> None:
    net, file = exported_net(), tmp_path / "net.onnx"
    x = torch.randn(1, 1, 8, 8)
    torch.onnx.export(net, (x,), file, dynamo=dynamo, verbose=False)
    found = compared(net, file)
    assert found.same
    assert {row.names[0] for row in found.changes} == {
        *("skip", "drop", "blocks.0.0" if dynamo else "blocks.0.1")
    }
    assert all(row.reason for row in found.changes)
    net.fc = nn.Linear(4, 5)
    assert [row.names[0] for row in compared(net, file).changes if not row.reason] == ["fc"]


def test_an_exported_program_without_some_classes_has_the_same_layers() -> None:
    net = exported_net()
    program: Any = torch.export.export(net, (torch.randn(1, 1, 8, 8),))
    found = compared(net, program)
    assert found.same and not found.changes and found.b.unknown == 3
    net.blocks[0].append(nn.GELU())
    assert listed(compared(net, program)) == "removed blocks.0.3 -"


def test_layers_are_selected_and_renamed_by_the_map() -> None:
    a, b = planted(), planted()
    rename_block_and_change_it(b)
    del b.head
    found = compared(a, b, map={"body": "trunk"}, layers="trunk*")
    assert listed(found) == "changed body.0 trunk.0"
    inside = compared(a, b, layers="head.*")
    assert listed(inside) == "removed head.drop -, removed head.fc -"
    nets = f"{NETS}:single", f"{NETS}:renamed"
    assert compared(*nets, map={"stem": "first", "body": "trunk"}, types="Conv2d").same
    assert not compared(*nets).same
