"""Losses against torch.nn.functional, worked numbers and finite differences."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookscope.errors import LossError
from hookscope.execution.loss import compute_loss
from hookscope.specs.losses import FORMULAS

CLASS_LOSSES = [name for name, formula in FORMULAS.items() if formula.needs_target]


def logits(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source).requires_grad_()


def gradient(name: str, output: Tensor, target: object, **options: object) -> Tensor:
    return torch.autograd.grad(compute_loss(name, output, target, **options).value, output)[0]


@given(st.integers(0, 1000))
def test_raw_kl_has_the_same_gradient_whatever_the_logits(seed: int) -> None:
    found = gradient("kl", logits(1, 10, seed=seed), "3", raw=True)
    expected = torch.zeros(1, 10)
    expected[0, 3] = -0.1
    assert torch.equal(found, expected)


def test_raw_kl_is_the_module_of_pytorch_with_its_own_default() -> None:
    x = logits(4, 10)
    target = F.one_hot(torch.tensor([3, 1, 0, 9]), 10).float()
    with pytest.warns(UserWarning, match="batchmean"):
        expected = torch.nn.KLDivLoss()(x, target)
    assert torch.allclose(compute_loss("kl", x, "3,1,0,9", raw=True).value, expected)


@given(
    st.sampled_from([(1, 10), (3, 7), (2, 5, 4), (2, 3, 4, 5)]),
    st.integers(0, 2),
    st.integers(0, 50),
)
def test_kl_of_a_class_is_cross_entropy(shape: tuple[int, ...], label: int, seed: int) -> None:
    x = logits(*shape, seed=seed)
    kl = gradient("kl", x, label, reduction="sum")
    ce = gradient("ce", x, label, reduction="sum")
    y = torch.full((shape[0], *shape[2:]), label)
    assert torch.allclose(kl, ce, atol=1e-6)
    assert torch.allclose(
        compute_loss("kl", x, label, reduction="sum").value,
        F.cross_entropy(x, y, reduction="sum"),
        rtol=1e-4,
    )


def test_kl_from_uniform_is_the_divergence_in_that_direction() -> None:
    x = logits(2, 5)
    p = x.softmax(1)
    by_hand = sum(0.2 * torch.log(0.2 / p[i, c]) for i in range(2) for c in range(5)) / 2
    loss = compute_loss("kl", x, "uniform")
    assert torch.allclose(loss.value, by_hand)
    assert loss.target == "uniform over 5 classes"


def test_kl_of_equal_logits_from_uniform_is_zero() -> None:
    assert compute_loss("kl", torch.ones(3, 8), "uniform").value == pytest.approx(0, abs=1e-6)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of kl_div, as a reminder
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 3), (2, 6, 3, 5)])
def test_losses_equal_those_of_pytorch(shape: tuple[int, ...], reduction: str) -> None:
    x = logits(*shape)
    y = torch.randint(0, 6, (shape[0], *shape[2:]), generator=torch.Generator().manual_seed(1))
    dense = F.one_hot(y, 6).movedim(-1, 1).float()
    oracles = {
        "ce": F.cross_entropy(x, y, reduction=reduction),
        "nll": F.nll_loss(x, y, reduction=reduction),
        "mse": F.mse_loss(x, dense, reduction=reduction),
        "l1": F.l1_loss(x, dense, reduction=reduction),
        "smooth_l1": F.smooth_l1_loss(x, dense, reduction=reduction),
        "bce": F.binary_cross_entropy_with_logits(x, dense, reduction=reduction),
        "kl": F.kl_div(x.log_softmax(1), dense, reduction=reduction),
    }
    for name, expected in oracles.items():
        found = compute_loss(name, x, y, reduction=reduction).value
        assert torch.allclose(found, expected, rtol=1e-5), name


def test_logit_gradient_is_one_at_the_class_of_each_row_and_zero_elsewhere() -> None:
    assert torch.equal(
        gradient("logit", logits(2, 4), "3,0"), torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 0]])
    )


def test_logit_is_summed_over_the_positions_of_a_segmentation() -> None:
    x = logits(1, 4, 5, 6)
    loss = compute_loss("logit", {"out": x}, "2")
    assert torch.allclose(loss.value, x[:, 2].sum())


def test_sum_and_norm_take_every_floating_tensor() -> None:
    a, b = logits(2, 3), logits(4, seed=1)
    output = [{"boxes": a, "labels": torch.tensor([1, 2])}, {"scores": (b, None)}]
    assert torch.allclose(compute_loss("sum", output).value, a.sum() + b.sum())
    expected = torch.sqrt((a**2).sum() + (b**2).sum())
    assert torch.allclose(compute_loss("norm", output).value, expected)


@dataclass
class Scores:
    loss: Tensor | None
    logits: Tensor


Named = namedtuple("Named", "logits aux")  # as googlenet gives in train mode


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: OrderedDict(aux=x * 2, out=x),
        lambda x: Named(x, x * 2),
        lambda x: Scores(x.sum(), x),
        lambda x: (torch.tensor([1]), x, x * 2),
        lambda x: {"last": x},
    ],
)
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_scores_are_found_in_any_output(wrap: object, name: str) -> None:
    x = logits(2, 5)
    assert torch.equal(compute_loss(name, wrap(x), "1").value, compute_loss(name, x, "1").value)


def test_classes_of_three_dimensional_logits_come_last() -> None:
    x = logits(2, 3, 7)  # batch, token, class
    found = compute_loss("ce", Scores(None, x), "6").value
    assert torch.allclose(found, F.cross_entropy(x.reshape(6, 7), torch.full((6,), 6)))


def test_one_row_without_a_batch_dimension_counts_as_a_batch_of_one() -> None:
    x = logits(10)
    expected = compute_loss("kl", x.unsqueeze(0), "3").value
    assert torch.equal(compute_loss("kl", x, "3").value, expected)


@pytest.mark.parametrize("name", ["bce", "mse", "logit"])
def test_losses_without_softmax_work_on_one_class(name: str) -> None:
    assert gradient(name, logits(2, 1), "0").abs().min() > 0


@pytest.mark.parametrize(
    "output",
    [
        [{"boxes": torch.ones(2, 4), "scores": torch.ones(2)}],
        torch.tensor(3.0),
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(0, 5),
        {"ids": torch.tensor([1])},
        None,
    ],
)
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_an_output_without_scores_is_refused_with_a_way_out(output: object, name: str) -> None:
    with pytest.raises(LossError) as caught:
        compute_loss(name, output, "0")
    assert "sum and norm" in caught.value.hint


def test_an_output_without_floating_tensors_has_no_sum() -> None:
    with pytest.raises(LossError, match="no floating-point tensor"):
        compute_loss("sum", {"ids": torch.tensor([1])})


def test_double_precision_stays() -> None:
    x = logits(2, 3).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: compute_loss("kl", z, "2,0").value, x)
    assert torch.autograd.gradcheck(lambda z: compute_loss("norm", z).value, x)


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(LossError) as caught:
        compute_loss("smoothl1", logits(1, 2), "0")
    assert "Did you mean smooth_l1" in caught.value.hint


def test_a_loss_says_what_was_computed() -> None:
    loss = compute_loss("kl", logits(1, 3), "1", categories=("a", "b", "c"))
    assert (loss.name, loss.reduction, loss.target) == ("kl", "batchmean", "1 (b)")
    assert loss.formula == FORMULAS["kl"].formula
    raw = compute_loss("kl", logits(1, 3), "1", raw=True)
    assert (raw.formula, raw.reduction) == (FORMULAS["kl"].raw_formula, "mean")


def test_a_list_of_tensors_holds_no_class_scores() -> None:
    flow = [logits(1, 2, 4, 4), logits(1, 2, 4, 4)]  # as optical flow models return it
    with pytest.raises(LossError, match="no tensor of class scores") as caught:
        compute_loss("ce", flow)
    assert "sum and norm" in caught.value.hint
    assert compute_loss("norm", flow).value > 0
    assert compute_loss("ce", tuple(flow)).value > 0


def test_a_target_that_the_loss_does_not_use_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "hookscope"):
        compute_loss("norm", logits(1, 3))
        assert not caplog.text
        compute_loss("norm", logits(1, 3), "1")
    assert "target: not used by the loss norm" in caplog.text


def test_a_reduction_of_one_number_is_refused_with_a_repair() -> None:
    with pytest.raises(LossError, match="takes no reduction") as caught:
        compute_loss("norm", logits(1, 3), reduction="mean")
    assert "Leave out --reduction" in caught.value.hint
