"""A module's type and arguments in short form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookscope.views.module_tree import short_signature

MODULES: list[tuple[nn.Module, str]] = [
    (nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), "Conv2d(3, 64, 7x7, stride 2)"),
    (nn.Conv2d(8, 8, (3, 1), stride=(2, 1), groups=8), "Conv2d(8, 8, 3x1, stride 2x1, groups 8)"),
    (nn.Conv2d(4, 4, 3, dilation=2), "Conv2d(4, 4, 3x3, dilation 2)"),
    (nn.Conv1d(4, 8, 3), "Conv1d(4, 8, 3)"),
    (nn.BatchNorm2d(64), "BatchNorm2d(64)"),
    (nn.LayerNorm(768), "LayerNorm(768)"),
    (nn.LayerNorm((4, 8)), "LayerNorm(4x8)"),
    (nn.GroupNorm(32, 64), "GroupNorm(32, 64)"),
    (nn.ReLU(inplace=True), "ReLU(inplace)"),
    (nn.ReLU(), "ReLU"),
    (nn.Linear(512, 1000), "Linear(512, 1000)"),
    (nn.MaxPool2d(3, stride=2, padding=1), "MaxPool2d(3x3, stride 2)"),
    (nn.MaxPool1d(2), "MaxPool1d(2, stride 2)"),
    (nn.AdaptiveAvgPool2d((1, 1)), "AdaptiveAvgPool2d(1x1)"),
    (nn.Dropout(0.5), "Dropout(0.5)"),
    (nn.Embedding(10, 4, padding_idx=0), "Embedding(10, 4, padding_idx=0)"),
    (nn.LSTM(4, 8, 2, batch_first=True), "LSTM(4, 8, num_layers=2, batch_first)"),
    (nn.Upsample(scale_factor=2.0), "Upsample(scale_factor=2.0, mode=nearest)"),
    (nn.Softmax(dim=1), "Softmax(dim=1)"),
    (nn.Sequential(), "Sequential"),
]


@pytest.mark.parametrize(("module", "shown"), MODULES, ids=[shown for _, shown in MODULES])
def test_what_tells_a_reader_something_is_kept(module: nn.Module, shown: str) -> None:
    assert short_signature(type(module).__name__, module.extra_repr()) == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("a=(1, 2", "M(a=(1, 2)"),
        ("a], b", "M(a], b)"),
        ("it's", "M(it's)"),
        ("first\n  second", "M(first second)"),
        ("f=lambda x: x, y", "M(f=lambda x: x, y)"),
        ("[red], :x:", "M([red], :x:)"),
        (", ,", "M"),
        ("  ", "M"),
    ],
)
def test_what_is_no_list_of_arguments_is_kept_as_it_is(arguments: str, shown: str) -> None:
    assert short_signature("M", arguments) == shown


def test_limit_cuts_the_arguments_and_says_so() -> None:
    assert short_signature("M", "x" * 10_000, limit=20) == f"M({'x' * 17}...)"
    assert len(short_signature("M", "x" * 10_000)) == 10_003


@given(st.text(st.characters(), max_size=200), st.integers(4, 60))
def test_no_arguments_of_any_kind_fail(arguments: str, limit: int) -> None:
    assert short_signature("M", arguments).startswith("M")
    assert len(short_signature("M", arguments, limit)) <= limit + 3
