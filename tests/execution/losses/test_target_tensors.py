"""Targets given as tensors and lists, against the torch functions they are meant for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hookscope
from hookscope.errors import LossError
from hookscope.execution.loss import compute_loss
from hookscope.execution.target import resolve_target

SCORES = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))


def as_text(classes: list[int]) -> str:
    return ",".join(map(str, classes))


@pytest.mark.parametrize("as_given", [list, tuple, torch.tensor, np.array, as_text])
@pytest.mark.parametrize(("classes", "wrong"), [([-1, 2], -1), ([2, 4], 4), ([0, -5], -5)])
def test_a_class_out_of_range_is_refused_wherever_it_stands(
    as_given: Any, classes: list[int], wrong: int
) -> None:
    with pytest.raises(LossError, match=f"no class {wrong}: the model's output has 4 classes"):
        resolve_target(as_given(classes), SCORES)


@pytest.mark.parametrize("target", [[-1, 2], torch.tensor([-1, 2])])
def test_grads_refuses_a_class_out_of_range(target: Any) -> None:
    net = torch.nn.Linear(3, 4)
    with pytest.raises(LossError, match="no class -1"):
        hookscope.grads(net, input=torch.ones(2, 3), target=target)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_class_indices_of_any_integer_type_are_int64(dtype: torch.dtype) -> None:
    found = resolve_target(torch.tensor([1, 3], dtype=dtype), SCORES)
    assert found.classes.dtype is torch.int64 and found.values is None


def test_one_class_for_each_row_stands_at_every_position_of_a_map() -> None:
    found = resolve_target(torch.tensor([1, 3]), MAPS).classes
    assert torch.equal(found, torch.tensor([1, 3])[:, None, None].expand(2, 3, 5))
    assert torch.equal(resolve_target([1, 3], MAPS).classes, found)


@pytest.mark.parametrize("target", [torch.tensor(2), torch.tensor([2]), torch.tensor([[2]]), 2])
def test_a_single_class_stands_for_every_row_and_position(target: Any) -> None:
    assert torch.equal(resolve_target(target, MAPS).classes, torch.full((2, 3, 5), 2))
    assert resolve_target(target, SCORES).classes.tolist() == [2, 2]


def test_a_map_of_classes_is_that_of_cross_entropy() -> None:
    classes = torch.randint(4, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    found = compute_loss("ce", MAPS, classes, reduction="mean").value
    torch.testing.assert_close(found, F.cross_entropy(MAPS, classes))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3), (1, 3, 5)])
def test_class_indices_of_another_shape_are_refused_with_those_that_fit(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(LossError) as caught:
        resolve_target(torch.zeros(shape, dtype=torch.int64), MAPS)
    assert f"shape {'x'.join(map(str, shape))} does not fit" in str(caught.value)
    assert "2x3x5 or 2." in caught.value.hint


def test_a_floating_target_of_another_shape_is_refused_with_those_that_fit() -> None:
    with pytest.raises(LossError, match="A target of shape 4x2 does not fit") as caught:
        resolve_target(torch.zeros(4, 2), SCORES)
    assert "2x4 or 4." in caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_floating_target_takes_the_type_of_the_scores(dtype: torch.dtype) -> None:
    values = torch.tensor([0.25, 0.25, 0.5, 0.0], dtype=dtype)
    found = resolve_target(values, SCORES)
    assert found.classes is None and found.values.dtype is torch.float32
    assert torch.equal(found.values, values.float().expand(2, 4))
    whole = torch.rand(2, 4, dtype=dtype)
    assert torch.equal(resolve_target(whole, SCORES).values, whole.float())


def test_a_complex_target_is_refused() -> None:
    with pytest.raises(LossError, match="complex"):
        resolve_target(torch.zeros(2, 4, dtype=torch.complex64), SCORES)


def test_uniform_gives_every_class_the_same_share() -> None:
    assert torch.equal(resolve_target("uniform", MAPS).values, torch.full_like(MAPS, 0.25))


def test_argmax_of_a_batch_names_five_rows_and_says_if_there_are_more() -> None:
    def text(rows: int) -> str:
        scores = torch.zeros(rows, 9)
        scores[range(rows), range(rows)] = 1.0
        return resolve_target("argmax", scores, ["a", "b"]).text

    assert text(2) == "argmax: 0 (a), 1 (b)"
    assert text(5) == "argmax: 0 (a), 1 (b), 2, 3, 4"
    assert text(6) == "argmax: 0 (a), 1 (b), 2, 3, 4, ..."


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (torch.tensor([1, 2]), "given tensor (2)"),
        (torch.tensor(1), "given tensor (one number)"),
        (np.zeros((2, 4), dtype=np.float32), "given tensor (2x4)"),
        ("1, 0", "1, 0"),
        ("uniform", "uniform over 4 classes"),
    ],
)
def test_the_target_is_named_in_words(target: Any, text: str) -> None:
    assert resolve_target(target, SCORES).text == text
