"""The text of every command at 40, 80 and 200 columns and in a pipe, compared with files.

After an intended change, ``HOOKSCOPE_REFRESH_GOLDENS=1 pytest tests/views`` rewrites the files. The
invariants below hold for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from rich.cells import cell_len
from rich.text import Text
from torchvision.models import get_model

import hookscope
from hookscope.hooks.layers import describe_model
from hookscope.results.module_tree import ModuleTree
from hookscope.results.structure_diff import StructureDiff
from hookscope.specs.catalog import ModelInfo
from hookscope.views.ablation import ablation_lines
from hookscope.views.capture import COLUMNS as CAPTURE_COLUMNS
from hookscope.views.capture import capture_lines
from hookscope.views.capture_diff import COLUMNS as DIFF_COLUMNS
from hookscope.views.capture_diff import diff_lines
from hookscope.views.grad_check import COLUMNS as GRADCHECK_COLUMNS
from hookscope.views.grad_check import gradcheck_lines
from hookscope.views.grads import COLUMNS as GRADS_COLUMNS
from hookscope.views.grads import grads_lines
from hookscope.views.models import COLUMNS as MODELS_COLUMNS
from hookscope.views.models import models_lines
from hookscope.views.module_tree import tree_lines
from hookscope.views.step import COLUMNS as STEP_COLUMNS
from hookscope.views.step import step_lines
from hookscope.views.stored_tensors import COLUMNS as SHOW_COLUMNS
from hookscope.views.stored_tensors import tensor_lines
from hookscope.views.structure_diff import COLUMNS as STRUCTURE_COLUMNS
from hookscope.views.structure_diff import structure_lines
from hookscope.views.text.table import Column
from hookscope.views.text.terminal_maps import map_lines
from hookscope.views.text.text_table import TextOptions
from hookscope.views.trace import COLUMNS as TRACE_COLUMNS
from hookscope.views.trace import trace_lines
from tests.views.text import samples

WIDTHS = (40, 80, 200, None)
TREE_COLUMNS = (
    *(Column("layer"), Column("type"), Column("own"), Column("parameters", "params")),
    Column("state"),
)
SHAPES_COLUMNS = (*TREE_COLUMNS, Column("output"), Column("calls"), Column("FLOPs"))
ABLATE_COLUMNS = (
    *(Column("layer"), Column("type"), Column("channel", "ch")),
    *map(Column, ("score", "loss", "output", "flipped")),
)
Lines = Callable[[int | None, bool], list[Text]]


@cache
def resnet18_tree() -> ModuleTree:
    with torch.device("meta"):
        return describe_model(get_model("resnet18", weights=None), "resnet18")


def resnet18(width: int | None, ascii: bool) -> list[Text]:
    return tree_lines(resnet18_tree(), TextOptions(width, ascii))


def small(width: int | None, ascii: bool) -> list[Text]:
    return tree_lines(samples.small_tree(), TextOptions(width, ascii))


def shapes(width: int | None, ascii: bool) -> list[Text]:
    return tree_lines(samples.with_run(samples.small_tree()), TextOptions(width, ascii))


def capture(width: int | None, ascii: bool) -> list[Text]:
    return capture_lines(samples.outputs(), TextOptions(width, ascii))


def grads(width: int | None, ascii: bool) -> list[Text]:
    return grads_lines(samples.gradients(), TextOptions(width, ascii))


def ablate(width: int | None, ascii: bool) -> list[Text]:
    return ablation_lines(samples.ablation(), TextOptions(width, ascii))


def models(width: int | None, ascii: bool) -> list[Text]:
    weights = ("IMAGENET1K_V1", "IMAGENET1K_V2")
    size = "1x3x224x224"
    return models_lines(
        [
            ModelInfo("alexnet", "classification", 61_100_840, weights[:1], size),
            ModelInfo("resnet50", "classification", 25_557_032, weights, size),
            ModelInfo("ssdlite320_mobilenet_v3_large", "detection", 3_440_060, (), "3x320x320"),
        ],
        TextOptions(width, ascii),
    )


def edited(width: int | None, ascii: bool) -> list[Text]:
    return capture_lines(samples.edited(), TextOptions(width, ascii))


def step(width: int | None, ascii: bool) -> list[Text]:
    return step_lines(samples.stepped(), TextOptions(width, ascii))


def trace(width: int | None, ascii: bool) -> list[Text]:
    return trace_lines(samples.trace(), TextOptions(width, ascii))


def gradcheck(width: int | None, ascii: bool) -> list[Text]:
    return gradcheck_lines(samples.checked(), TextOptions(width, ascii))


def diff(width: int | None, ascii: bool) -> list[Text]:
    return diff_lines(samples.compared(), TextOptions(width, ascii))


@cache
def restructured() -> StructureDiff:
    with torch.device("meta"):
        a, b = get_model("resnet18", weights=None), get_model("resnet34", weights=None)
        b.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1)
        b.layer4.fc, b.relu = b.fc, torch.nn.GELU()
    del b.fc, b.maxpool
    found = hookscope.diff(a, b, structure=True)
    assert isinstance(found, StructureDiff)
    return found


def structure(width: int | None, ascii: bool) -> list[Text]:
    return structure_lines(restructured(), TextOptions(width, ascii))


def show(width: int | None, ascii: bool) -> list[Text]:
    return tensor_lines(samples.looked(), TextOptions(width, ascii))


TABLES: dict[str, tuple[Lines, tuple[Column, ...], tuple[str, ...]]] = {
    "tree-resnet18": (resnet18, TREE_COLUMNS, ("layer2.0.downsample.0", "avgpool", "fc")),
    "tree-small": (small, TREE_COLUMNS, ("stem.0", "block.first", "attention.out_proj", "head")),
    "tree-shapes": (shapes, SHAPES_COLUMNS, ("stem.0", "block.second", "attention.out_proj")),
    "capture": (capture, CAPTURE_COLUMNS, ("layer3.0.downsample.0", "layer3.0.blocks", "decoder")),
    "grads": (grads, GRADS_COLUMNS, ("layer1.0.conv1", "layer1.0.mask", "aux", "late")),
    "edited": (edited, CAPTURE_COLUMNS, ("stem", "layer3.0.downsample.0")),
    "step": (step, STEP_COLUMNS, ("layer1.0.conv1", "layer1.0.bn1", "late")),
    "trace": (trace, TRACE_COLUMNS, ("layer1.0.conv1", "layer1.0.relu")),
    "gradcheck": (gradcheck, GRADCHECK_COLUMNS, ("input.0", "input.scale")),
    "diff": (diff, DIFF_COLUMNS, ("layer1.0.relu:2/output", "body.0.relu_2/output", "aux/output")),
    "structure": (structure, STRUCTURE_COLUMNS, ("conv1", "relu", "maxpool", "layer1.2", "fc")),
    "ablate": (ablate, ABLATE_COLUMNS, ("layer1.0.conv2", "layer1.0.norm", "layer1.0.mask", "fc")),
    "show": (show, SHOW_COLUMNS, ("layer3.0.downsample.0/output[0]", "[0,15,3,3]", "NaN")),
    "models": (models, MODELS_COLUMNS, ("alexnet", "ssdlite320_mobilenet_v3_large")),
}


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_output_is_the_golden_one(
    name: str, width: int | None, ascii: bool, golden: Callable[[str, str], None]
) -> None:
    lines, columns, names = TABLES[name]
    texts = [line.plain for line in lines(width, ascii)]
    if not ascii:
        golden(f"{name}-{width or 'pipe'}", "".join(f"{text}\n" for text in texts))
    check_invariants(texts, columns, names, width, ascii)


def check_invariants(
    texts: list[str],
    columns: tuple[Column, ...],
    names: tuple[str, ...],
    width: int | None,
    ascii: bool,
) -> None:
    assert all(text == text.rstrip() for text in texts)
    if width is not None:
        assert max(map(cell_len, texts)) <= width
    if ascii:
        assert all(text.isascii() for text in texts)
    for name in names:
        assert any(name in text for text in texts), name
    assert not any("…" in text for text in texts)
    header = next(text.split() for text in texts if text.split()[:1] == [columns[0].title])
    titles = [{column.title, column.short} for column in columns]
    places = [i for word in header for i, both in enumerate(titles) if word in both]
    assert places == sorted(set(places)), "columns keep their order"
    if width is None:
        assert header[: len(columns)] == [column.title for column in columns]


@pytest.mark.parametrize("width", [40, 80])
def test_maps_in_shades_are_the_golden_ones(width: int, golden: Callable[[str, str], None]) -> None:
    for name, each in (("maps", False), ("maps-each", True)):
        lines = [line.plain for line in map_lines(samples.maps(), (width, 24), False, each)]
        golden(f"{name}-{width}", "".join(f"{line}\n" for line in lines))
        assert max(map(len, lines)) <= width
        assert all(line.isascii() and line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", TABLES)
def test_columns_yield_one_by_one_as_the_terminal_narrows(name: str) -> None:
    lines, columns, _ = TABLES[name]
    known = {column.short or column.title: column.title for column in columns}
    wider: set[str] | None = None
    for width in range(200, 20, -4):
        header = next(t for t in (x.plain for x in lines(width, False)) if columns[0].title in t)
        shown = {known.get(word, word) for word in header.split()}
        assert wider is None or shown <= wider
        wider = shown
