"""The gradient penalty against torch.autograd by hand, bit for bit, and numbers from paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import EditError, ForwardError, LossError
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Module

Score = Callable[[Tensor], Tensor]


def by_hand(
    net: nn.Module, x: Tensor, score: Score = lambda y: y.flatten().sum()
) -> tuple[Tensor, list[float], dict[str, Tensor | None]]:
    """The penalty, the norms, and the gradient at every parameter, in plain PyTorch."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(score(net(x)), x, create_graph=True)
    norms = slope.flatten(1).norm(2, dim=1)
    penalty = ((norms - 1) ** 2).mean()
    names, parameters = zip(*net.named_parameters(), strict=True)
    found = torch.autograd.grad(penalty, parameters, allow_unused=True)
    return penalty, norms.tolist(), dict(zip(names, found, strict=True))


def key(name: str) -> str:
    module, _, parameter = name.rpartition(".")
    return f"{module or '.'}/{parameter}.grad"


def agrees(found: hookscope.Capture, expected: tuple[Any, ...]) -> None:
    value, norms, gradients = expected
    assert found.metadata["penalty"]["value"] == float(value.detach())
    assert found.metadata["penalty"]["norms"] == norms
    for name, gradient in gradients.items():
        if gradient is None:
            assert key(name) not in found
        else:
            assert same_bits(found[key(name)], gradient), name


def smooth() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)
    )


def rectified() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8, 1),
    )


def residual() -> nn.Module:
    return Module(
        lambda self, x: self.out(self.act(self.inner(x)) + x + self.act(x)),
        inner=nn.Linear(6, 6),
        act=nn.SiLU(),
        out=nn.Linear(6, 1),
    )


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("make", [smooth, rectified, residual])
def test_penalty_norms_and_second_order_gradients_are_those_by_hand(make: Any) -> None:
    torch.manual_seed(0)
    net = make()
    agrees(hookscope.grads(net, penalty="gp", input=X), by_hand(net, X))
    assert hooks_left(net) == 0


def test_the_gradients_at_outputs_are_the_penaltys_too() -> None:
    torch.manual_seed(0)
    net = smooth()
    found = hookscope.grads(net, penalty="gp", input=X, layers=["0"], what=["output", "input"])
    x = X.clone().requires_grad_()
    first = net[0](x)
    (slope,) = torch.autograd.grad(net[1:](first).sum(), x, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    at_output, at_input = torch.autograd.grad(penalty, [first, x])
    assert same_bits(found["0/output.grad"], at_output)
    assert same_bits(found["./input.0.grad"], at_input)
    assert same_bits(found["./input.0.score.grad"], slope)


def test_the_score_is_the_loss_summed_over_the_batch() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    logit = hookscope.grads(net, penalty="gp", loss="logit", target=2, input=X)
    agrees(logit, by_hand(net, X, lambda y: y[:, 2].sum()))
    entropy = hookscope.grads(net, penalty="gp", loss="ce", target=2, input=X)
    classes = torch.full((5,), 2)
    expected = by_hand(net, X, lambda y: F.cross_entropy(y, classes, reduction="sum"))
    assert entropy.metadata["penalty"]["value"] == pytest.approx(
        float(expected[0].detach()), rel=1e-5
    )
    own = hookscope.grads(net, penalty="gp", loss=lambda y: (y**2).sum(), input=X)
    agrees(own, by_hand(net, X, lambda y: (y**2).sum()))
    with pytest.raises(LossError, match="mean"):
        hookscope.grads(net, penalty="gp", loss="logit", reduction="mean", input=X)


def test_two_steps_on_paper(repo: Path) -> None:
    """|8, 8, 8, 8| / 4 = 4, so (4 - 1)^2 = 9, and at each weight 2 * 3 * (8 / 16) / 4 = 0.75."""
    word = f"{repo}/sample_models/two_steps.py:TwoSteps"
    found = hookscope.grads(word, penalty="gp")
    assert found.metadata["penalty"]["value"] == 9
    assert found.metadata["penalty"]["norms"] == [4]
    assert found["f1/weight.grad"].tolist() == [[0.75] * 4]
    assert found["./input.0.score.grad"].tolist() == [2] * 4
    assert {a.reason for a in found.absent} == {"outside the penalty"}


@pytest.mark.parametrize("name", ["digits_scripted.pt", "digits_exported.pt2"])
def test_files_give_what_their_model_gives(repo: Path, name: str) -> None:
    x = torch.rand(2, 1, 8, 8) if name.endswith(".pt") else torch.rand(1, 1, 8, 8)
    words = (f"{repo}/sample_models/{name}", f"{repo}/sample_models/digits.py:trained")
    file, original = (
        hookscope.grads(word, penalty="gp", loss="logit", target=3, input=x) for word in words
    )
    net = hookscope.load_model(words[1]).module
    agrees(original, by_hand(net, x, lambda y: y[:, 3].sum()))
    assert list(file) == list(original)
    assert all(same_bits(file[key], original[key]) for key in original)
    assert file.metadata["penalty"]["value"] == original.metadata["penalty"]["value"]


def test_several_inputs_make_one_norm() -> None:
    net = Module(lambda self, a, *, b: (a**2).sum(1) + (b**3).sum(1))
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0]])
    found = hookscope.grads(net, penalty="gp", input=((a,), {"b": b}))
    assert found.metadata["penalty"]["norms"] == [pytest.approx((4 + 16 + 9) ** 0.5)]
    assert found["./input.0.score.grad"].tolist() == [[2, 4]]
    assert found["./input.b.score.grad"].tolist() == [[3]]


def test_what_cannot_be_differentiated_twice_is_told_in_a_sentence() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * grad

    def attention(self: Module, x: Tensor) -> Tensor:
        q = self.inner(x).reshape(5, 1, 3, 2)
        return F.scaled_dot_product_attention(q, q, q).sum((1, 2, 3))

    nets = [
        Module(lambda self, x: Once.apply(self.inner(x)), inner=nn.Linear(6, 1)),
        Module(attention, inner=nn.Linear(6, 6)),
    ]
    for net in nets:
        with pytest.raises(ForwardError, match="twice"):
            hookscope.grads(net, penalty="gp", input=X)
        assert hooks_left(net) == 0


def test_what_has_no_penalty_is_told_in_a_sentence() -> None:
    constant = Module(lambda self, x: x * 3)
    with pytest.raises(LossError, match="is a constant"):
        hookscope.grads(constant, penalty="gp", input=X)
    words = Module(lambda self, x: self.table(x).sum(1), table=nn.Embedding(4, 1))
    with pytest.raises(LossError, match="input"):
        hookscope.grads(words, penalty="gp", input=torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    "changes",
    [{"grad_edits": "1=scale:0.5"}, {"hooks": {"1": print}, "hook_kind": "tensor"}],
)
def test_gradients_that_are_differentiated_again_are_not_changed_on_the_way(changes: Any) -> None:
    with pytest.raises(EditError, match="penalty"):
        hookscope.grads(nn.Linear(3, 2), shape=(5, 3), penalty="gp", **changes)


def test_a_value_edited_on_its_way_is_part_of_what_is_differentiated() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    found = hookscope.grads(net, input=x, penalty="gp", edits="1=scale:0.5")
    net[1].register_forward_hook(lambda module, args, output: output * 0.5)
    leaf = x.clone().requires_grad_()
    [grad] = torch.autograd.grad(net(leaf).sum(), leaf, create_graph=True)
    ((grad.norm(dim=1) - 1) ** 2).mean().backward()
    torch.testing.assert_close(found["0/weight.grad"], net[0].weight.grad)
