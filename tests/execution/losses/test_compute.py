"""Losses against torch.nn.functional, worked numbers and finite differences; their bounds."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, LossError
from hookscope.execution.loss import (
    class_scores,
    compute_loss,
    flatten_floating,
    has_classes,
    projection_loss,
)
from hookscope.specs.losses import FORMULAS, REDUCTIONS, check_reduction, reject_loss_options
from tests.zoo import Module

CLASS_LOSSES = [name for name, formula in FORMULAS.items() if formula.needs_target]
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def logits(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source).requires_grad_()


def gradient(name: str, output: Tensor, target: object, **options: object) -> Tensor:
    return torch.autograd.grad(compute_loss(name, output, target, **options).value, output)[0]


# Values


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of kl_div, as a reminder
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (2, 4, 3, 5)])
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_losses_are_those_of_pytorch(
    name: str, raw: bool, reduction: str, shape: tuple[int, ...]
) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 4, (shape[0], *shape[2:]), generator=torch.Generator().manual_seed(2))
    dense = F.one_hot(y, 4).movedim(-1, 1).float()
    bce = F.binary_cross_entropy if raw else F.binary_cross_entropy_with_logits
    terms = {
        "kl": F.kl_div(x if raw else x.log_softmax(1), dense, reduction="none"),
        "ce": F.cross_entropy(x, y, reduction="none"),
        "nll": F.nll_loss(x, y, reduction="none"),
        "logit": x.gather(1, y[:, None]),
        "mse": (x - dense) ** 2,
        "l1": (x - dense).abs(),
        "smooth_l1": F.smooth_l1_loss(x, dense, reduction="none"),
        "bce": bce(x, dense, reduction="none"),
    }[name]
    expected = {"mean": terms.mean(), "sum": terms.sum(), "batchmean": terms.sum() / shape[0]}
    found = compute_loss(name, x, y, raw=raw, reduction=reduction)
    torch.testing.assert_close(found.value, expected[reduction])
    assert (found.reduction, found.raw) == (reduction, raw)
    assert found.classes is not None and torch.equal(found.classes, y)
    formula = FORMULAS[name]
    assert found.formula == (formula.raw_formula if raw else formula.formula) and found.formula
    default = compute_loss(name, x, y, raw=raw)
    assert default.reduction == (formula.raw_reduction if raw else formula.reduction)


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
def test_kl_of_a_class_has_the_gradient_of_cross_entropy(shape, label: int, seed: int) -> None:
    x = logits(*shape, seed=seed)
    kl = gradient("kl", x, label, reduction="sum")
    assert torch.allclose(kl, gradient("ce", x, label, reduction="sum"), atol=1e-6)


def test_kl_from_uniform_is_the_divergence_in_that_direction() -> None:
    x = logits(2, 5)
    p = x.softmax(1)
    by_hand = sum(0.2 * torch.log(0.2 / p[i, c]) for i in range(2) for c in range(5)) / 2
    loss = compute_loss("kl", x, "uniform")
    assert torch.allclose(loss.value, by_hand)
    assert compute_loss("kl", torch.ones(3, 8), "uniform").value == pytest.approx(0, abs=1e-6)


def test_logit_gradient_is_one_at_the_class_of_each_row_and_zero_elsewhere() -> None:
    assert torch.equal(
        gradient("logit", logits(2, 4), "3,0"), torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 0]])
    )


@pytest.mark.parametrize("name", ["sum", "norm"])
def test_sum_and_norm_take_every_floating_tensor_and_no_target_or_reduction(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = logits(2, 3), logits(4, seed=1).double()
    output = [{"boxes": a, "labels": torch.tensor([1, 2])}, {"scores": (b, None)}]
    every = torch.cat([a.flatten().double(), b])
    with caplog.at_level("INFO", "hookscope"):
        found = compute_loss(name, output)
        assert not caplog.text
        compute_loss(name, output, "1")
    assert "target" in caplog.text and name in caplog.text
    torch.testing.assert_close(found.value.double(), every.sum() if name == "sum" else every.norm())
    assert (found.name, found.reduction, found.target, found.classes) == (name, "", "", None)
    with pytest.raises(LossError, match="reduction") as caught:
        compute_loss(name, output, reduction="mean")
    assert "--reduction" in caught.value.hint
    check_reduction(FORMULAS[name], None)


def test_double_precision_stays() -> None:
    x = logits(2, 3).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: compute_loss("kl", z, "2,0").value, x)
    assert torch.autograd.gradcheck(lambda z: compute_loss("norm", z).value, x)


# Bounds


def test_probabilities_run_from_zero_to_one_inclusive() -> None:
    inside = torch.tensor([[0.0, 1.0, 0.25]])
    target = torch.tensor([[0.0, 1.0, 1.0]])
    found = compute_loss("bce", inside, target, raw=True)
    torch.testing.assert_close(found.value, F.binary_cross_entropy(inside, target))
    for outside in ([[-0.01, 1.0]], [[0.5, 1.01]], [[0.5, 1.5]], [[-1.0, 0.5]]):
        low, high = sorted(outside[0])
        with pytest.raises(LossError, match=f"{low:.4g} to {high:.4g}"):
            compute_loss("bce", torch.tensor(outside), torch.zeros(1, 2), raw=True)


@pytest.mark.parametrize("total", [1.0, 1.0005, 0.9995])
def test_a_distribution_adds_up_to_one(total: float) -> None:
    row = torch.tensor([0.5, 0.25, 0.25, 0.0]) * total
    for name in ("ce", "kl"):
        assert compute_loss(name, X, row).value.isfinite()
        for wrong, subject in ((row * 1.1, r"1\.(1|099|101)"), (row - 0.25, "-0.25")):
            with pytest.raises(LossError, match=f"distribution.*{subject}"):
                compute_loss(name, X, wrong)


def test_names_that_are_none_are_answered_with_those_that_are() -> None:
    with pytest.raises(LossError, match="'average'") as caught:
        compute_loss("ce", X, 1, reduction="average")
    assert all(name in caught.value.hint for name in REDUCTIONS)
    with pytest.raises(LossError) as caught:
        compute_loss("smoothl1", X, "0")
    assert "smooth_l1" in caught.value.hint


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ((None, "argmax", None, False), None),
        (("kl", "argmax", None, False), "loss"),
        ((None, "3", None, False), "target"),
        ((None, torch.zeros(2), None, False), "target"),
        ((None, "argmax", "sum", False), "reduction"),
        ((None, "argmax", None, True), "raw"),
    ],
)
def test_nothing_of_a_loss_is_chosen_without_a_backward_pass(choices: Any, name: Any) -> None:
    if name is None:
        return reject_loss_options(*choices)
    with pytest.raises(LossError, match=f"^--{name} ") as caught:
        reject_loss_options(*choices)
    assert f"--{name}" in caught.value.hint and "--forward-only" in caught.value.hint
    return None


@pytest.mark.parametrize("name", ["bce", "mse", "logit", "kl", "ce"])
def test_one_class_has_no_softmax_to_differentiate(name: str) -> None:
    if name not in ("kl", "ce"):
        assert gradient(name, logits(2, 1), "0").abs().min() > 0
        return
    one = torch.full((2, 1), 0.5)
    with pytest.raises(LossError, match=f"one class.*{name}") as caught:
        compute_loss(name, one, 0)
    assert all(other in caught.value.hint for other in ("logit", "bce", "mse"))
    assert compute_loss("kl", one, 0, raw=True).value.item() == pytest.approx(-0.5)
    with pytest.raises(LossError, match="one class"):
        compute_loss("ce", one, 0, raw=True)


# Scores in outputs


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
        lambda x: x[0],
    ],
)
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_scores_are_found_in_any_output(wrap: Any, name: str) -> None:
    x = logits(1, 5)
    assert torch.equal(compute_loss(name, wrap(x), "1").value, compute_loss(name, x, "1").value)


def test_classes_of_three_dimensional_logits_come_last() -> None:
    x = logits(2, 3, 7)  # batch, token, class
    found = compute_loss("ce", Scores(None, x), "6").value
    assert torch.allclose(found, F.cross_entropy(x.reshape(6, 7), torch.full((6,), 6)))


@pytest.mark.parametrize(
    ("output", "task", "expected"),
    [
        (X, "", True),
        (X, "classification", True),
        (X, "detection", False),
        (X, "optical flow", False),
        (X[0], "", True),
        (torch.zeros(2, 3, 4), "", False),
        (torch.zeros(2, 3, 4, 5), "", True),
        (torch.zeros(2, 1), "", False),
        (torch.zeros(2, 3, dtype=torch.int64), "", False),
        ({"out": X}, "", True),
        ({"logits": torch.zeros(2, 3, 4)}, "", True),
        ((X, X), "", False),
        ([X], "", False),
        (Named(X, X), "", True),
        ("text", "", False),
        (torch.zeros(0, 4), "", False),
    ],
)
def test_an_output_of_class_scores_is_told_from_others(output, task, expected) -> None:
    assert has_classes(output, task) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_are_of_single_precision_or_more(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    assert class_scores(X.to(dtype)).dtype is wide
    assert flatten_floating([X.to(dtype)]).dtype is wide
    assert class_scores(X[0]).shape == (1, 4)
    assert class_scores({"logits": torch.zeros(2, 3, 4)}).shape == (2, 4, 3)
    assert class_scores({"out": torch.zeros(2, 3, 4)}).shape == (2, 3, 4)


@pytest.mark.parametrize(
    "output",
    [
        [{"boxes": torch.ones(2, 4), "scores": torch.ones(2)}],
        [logits(1, 2, 4, 4), logits(1, 2, 4, 4)],  # as optical flow models return it
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
    with pytest.raises(LossError, match="floating-point"):
        compute_loss("sum", {"ids": torch.tensor([1])})


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_one_score_is_summed_if_no_loss_is_chosen(shape: tuple[int, ...]) -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        return self.fc(x) if shape else self.fc(x).mean()

    net = Module(forward, fc=nn.Linear(4, 1))
    [expected] = torch.autograd.grad(net(X).sum(), [net.fc.weight])
    assert hookscope.grads(net, input=X)["fc/weight.grad"].equal(expected)
    update = hookscope.step(net, input=X, optimizer="sgd", lr=1.0)["fc/weight.update"]
    assert torch.allclose(update, -expected)
    with pytest.raises(LossError, match="softmax" if shape else "no classes"):
        hookscope.grads(net, input=X, loss="ce")


def test_a_model_of_one_score_whose_backward_pass_fails_is_explained() -> None:
    net = Module(lambda self, x: self.fc(x).exp().add_(1), fc=nn.Linear(4, 1))
    with pytest.raises(ForwardError) as caught:
        hookscope.grads(net, input=X)
    assert caught.value.failure is not None and caught.value.failure.kind == "in-place"


# The output along a random direction


def direction(count: int, seed: int) -> Tensor:
    x = torch.zeros(count, requires_grad=True)
    return torch.autograd.grad(projection_loss(x, seed).value, x)[0]


def test_the_seed_alone_chooses_a_direction_of_unit_length_on_average() -> None:
    torch.manual_seed(1)
    first, state = direction(8, 3), torch.get_rng_state()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(direction(8, 3), first)
    assert not torch.allclose(direction(8, 4), first)
    drawn = direction(10_000, 0)
    assert float(drawn.norm()) == pytest.approx(1, abs=0.03)
    assert float(drawn.mean()) == pytest.approx(0, abs=5e-4)


def test_the_projection_is_the_sum_of_the_entries_along_the_direction() -> None:
    parts = {"a": torch.randn(2, 3), "b": torch.randn(4).double(), "c": torch.arange(3)}
    entries = torch.cat([parts["a"].flatten().double(), parts["b"]])
    expected = (entries * direction(10, 5).double()).sum()
    found = projection_loss(parts, 5)
    torch.testing.assert_close(found.value.double(), expected, rtol=1e-5, atol=1e-6)
    assert (found.name, found.target, found.reduction) == ("projection", "", "")
    assert "1/n" in found.formula
    with pytest.raises(LossError, match="empty"):
        projection_loss(torch.zeros(0, 3), 0)


def test_check_takes_another_direction_with_another_seed() -> None:
    def findings(seed: int) -> list[object]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).eval()
        # Over this ceiling every gradient is listed, with its largest entry.
        health = hookscope.check(
            net, only="exploding", input=torch.ones(2, 3), seed=seed, ceiling=1e-9
        )
        assert health.findings
        return [(finding.layer, finding.measured) for finding in health.findings]

    assert findings(0) == findings(0)
    assert findings(0) != findings(1)
