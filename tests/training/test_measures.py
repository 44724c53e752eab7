"""What the watcher records is what hooks written by hand find in the same training."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from tests.training.measured_by_hand import (
    ByHand,
    assert_same_rows,
    by_hand,
    recorded,
    recorded_steps,
    rows_of,
    watched,
)
from tests.zoo import Checkpointed, Module

pytestmark = pytest.mark.usefixtures("no_other_models")


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A network with a dead unit, and with zeros beside it."""
    model = nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.LayerNorm(10), nn.Linear(10, 4), nn.Tanh()
    ).to(dtype)
    with torch.no_grad():
        model[0].bias[3] = -100
    return model


def twice() -> nn.Module:
    """Calls a module twice, changes its output in place, and returns several tensors."""

    def forward(self: Module, tokens: Tensor) -> Tensor:
        return self.out(self.rnn(self.block(self.block(self.embedding(tokens))))[0])

    return Module(
        forward,
        embedding=nn.Embedding(9, 6),
        block=nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)),
        rnn=nn.GRU(6, 5, batch_first=True),
        out=nn.Linear(5, 9),
        unused=nn.Linear(2, 2),
    )


def curve(folder: Path, name: str = "", key: str = "loss", measure: str = "value") -> list[float]:
    return TrainingRun(folder / "run").steps.curve(Series(name, key, measure)).values.tolist()


@dataclass
class Plain:
    """A model, its batch, and what is told by steps: samples, and tokens if there are any."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    samples: int
    key: tuple[str, str]
    value: float | None = None
    tokens: int | None = None

    def loss(self, model: nn.Module) -> Tensor:
        batch = self.batch()
        output = model(batch)
        if batch.is_floating_point():
            return output.square().sum()
        return F.cross_entropy(output.flatten(0, 1), batch.flatten())


def dense(dtype: torch.dtype) -> Plain:
    batch = lambda: torch.randn(7, 6, dtype=dtype)  # noqa: E731
    return Plain(lambda: net(dtype), batch, 7, ("1/output", "dead"))


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 9))


def tokens() -> Tensor:
    return torch.randint(0, 9, (4, 7))


PLAIN = {
    **{str(dtype): dense(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)},
    "twice": Plain(twice, tokens, 4, ("unused/weight.grad", "norm"), 0, 28),
    "sparse": Plain(sparse, tokens, 4, ("0/weight.grad", "norm"), tokens=28),
    **{
        f"checkpoint {reentrant}": Plain(
            lambda reentrant=reentrant: Checkpointed(reentrant),
            lambda: torch.randn(3, 4),
            3,
            ("block.0/output.grad", "norm"),
        )
        for reentrant in (True, False)
    },
}


@pytest.mark.parametrize("case", PLAIN)
def test_layers_gradients_weights_and_updates(tmp_path: Path, case: str) -> None:
    plain = PLAIN[case]
    model = plain.model()
    if "float" in case:
        model[3].bias.requires_grad_(False)
    hand, losses = ByHand(model), []
    with watched(tmp_path):
        momentum = 0 if case == "sparse" else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for _ in range(3):
            loss = plain.loss(model)
            hand.step(optimizer, loss)
            losses.append(loss.item())
    assert_same_rows(recorded(tmp_path), hand.rows)
    steps = recorded_steps(tmp_path)
    assert [row["loss", "value"] for row in steps] == pytest.approx(losses, rel=1e-7)
    assert {row["batch", "samples"] for row in steps} == {plain.samples}
    assert {row.get(("batch", "tokens")) for row in steps} == {plain.tokens}
    value = hand.rows[0][plain.key]
    assert value > 0 if plain.value is None else value == plain.value


def test_the_gradient_is_that_before_clipping_and_of_all_batches(tmp_path: Path) -> None:
    model = net()
    hand, rates, losses = ByHand(model), [], []
    with watched(tmp_path):
        optimizer = torch.optim.AdamW(
            [{"params": model[0].parameters()}, {"params": model[2:].parameters(), "lr": 0.5}],
            lr=0.1,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        for _ in range(3):
            parts = []
            for size in (5, 2, 4):
                loss = model(torch.randn(size, 6)).square().sum()
                loss.backward()
                parts.append(loss.item())
            losses.append(sum(parts) / 3)
            with by_hand(hand, clip=0.1):
                grads = {id(p): p.grad.clone() for p in model.parameters()}
                optimizer.step()
            for key, p in (("0/weight", model[0].weight), ("3/bias", model[3].bias)):
                state = optimizer.state[p]
                v = state["exp_avg_sq"].double() / (1 - 0.999 ** state["step"].item())
                rms = (grads[id(p)].double().square() / v.clamp_min(1e-16)).mean().sqrt()
                hand.also(key, "adam_rms", rms.item())
            hand.end()
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.zero_grad()
            schedule.step()
    rows = recorded(tmp_path)
    for row in rows:
        for key in ("0/bias", "2/weight", "2/bias", "3/weight"):
            assert row.pop((key, "adam_rms")) > 0
    assert_same_rows(rows, hand.rows)
    assert all(row["gradients", "clipped"] > 0.9 for row in rows)
    assert curve(tmp_path) == pytest.approx(losses, rel=1e-7)
    assert {row["batch", "samples"] for row in recorded_steps(tmp_path)} == {11}
    for group in (0, 1):
        found = curve(tmp_path, "AdamW", f"groups.{group}", "lr")
        assert found == [pytest.approx(rate[group], rel=1e-7) for rate in rates]


def test_what_a_step_begins_with_besides_its_weights(tmp_path: Path) -> None:
    model, x, norms = net(), torch.randn(7, 6), []
    with watched(tmp_path):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for batch in (x, x.clone(), x.flip(0), x.to(torch.float64).float()):
            states = [optimizer.state.get(one, {}) for one in model.parameters()]
            squares = [state["exp_avg"].double().square().sum() for state in states if state]
            norms.append(math.sqrt(sum(squares)))
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            if len(norms) == 3:
                torch.rand(1), random.random()
            optimizer.step()
    of_optimizer = rows_of(TrainingRun(tmp_path / "run").steps, "AdamW")
    tensors = 3 * len(list(model.parameters()))
    assert [row["state", "tensors"] for row in of_optimizer] == [0] + 3 * [tensors]
    found = [row.get(("state.exp_avg", "norm"), 0) for row in of_optimizer]
    assert found == pytest.approx(norms, rel=1e-6)
    rows = recorded_steps(tmp_path)
    batches = [row["batch", "hash"] for row in rows]
    assert batches[0] == batches[1] == batches[3] != batches[2]
    for name in ("torch", "python"):
        hashes = [row[f"generators.{name}", "hash"] for row in rows]
        assert hashes[0] == hashes[1] != hashes[2] == hashes[3], name
    assert hashes[0] == 0 and {row["generators.numpy", "hash"] for row in rows} == {0}


def test_a_discriminator_has_the_gradient_of_its_own_step(tmp_path: Path) -> None:
    """The generator's backward pass adds to it, after that step and before the step's end."""
    generator, critic = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), nn.Linear(3, 1)
    hands = {"generator": ByHand(generator), "critic": ByHand(critic)}
    losses = []
    with watched(tmp_path):
        of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        of_generator = torch.optim.SGD(generator.parameters(), lr=0.2)
        for _ in range(3):
            critic.zero_grad()
            fake = generator(torch.randn(5, 2)).detach()
            loss = critic(fake).mean() - critic(torch.randn(5, 3)).mean()
            loss.backward()
            with by_hand(hands["critic"]):
                of_critic.step()
            generator.zero_grad()
            second = -critic(generator(torch.randn(5, 2))).mean()
            second.backward()
            with by_hand(hands["generator"]):
                of_generator.step()
            for hand in hands.values():
                hand.end()
            losses.append((loss.item(), second.item()))
    for name, hand in hands.items():
        assert_same_rows(recorded(tmp_path, name), hand.rows)
    run = TrainingRun(tmp_path / "run")
    assert [entry["models"] for entry in run.info["optimizers"]] == [["critic"], ["generator"]]
    for n, name in enumerate(("SGD", "SGD2")):
        assert curve(tmp_path, name) == pytest.approx([pair[n] for pair in losses], rel=1e-7)


def test_optimizers_used_one_after_the_other_have_steps_of_their_own(tmp_path: Path) -> None:
    """First the head alone, then everything."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    hand, losses = ByHand(model), []
    with watched(tmp_path):
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        whole = torch.optim.RMSprop(model.parameters(), lr=0.01)
        for optimizer in (*[head] * 3, *[whole] * 4):
            loss = model(torch.randn(7, 6)).square().mean()
            hand.step(optimizer, loss)
            losses.append(loss.item())
    rows = recorded(tmp_path)
    for row, expected in zip(rows[:3], hand.rows[:3], strict=True):
        for key in ("0/weight", "0/bias"):  # which this optimizer does not have
            for measure in ("norm", "ratio"):
                expected.pop((f"{key}.update", measure), None)
        expected["gradients", "clipped"] = row["gradients", "clipped"]
    assert_same_rows(rows, hand.rows)
    assert curve(tmp_path) == pytest.approx(losses, rel=1e-7)
    run = TrainingRun(tmp_path / "run")
    assert run.info["steps"] == len(run.steps) == 7
    for name, numbers in (("SGD", [0, 1, 2]), ("RMSprop", [3, 4, 5, 6])):
        assert run.steps.curve(Series(name, "groups.0", "lr")).steps.tolist() == numbers


def test_a_graph_with_a_backward_pass_for_each_optimizer(tmp_path: Path) -> None:
    """The second pass adds gradients at the outputs, after the first optimizer has stepped."""
    body, actor, critic = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
    hands = {"body": ByHand(body), "actor": ByHand(actor), "critic": ByHand(critic)}
    with watched(tmp_path):
        of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        of_actor = torch.optim.SGD([*body.parameters(), *actor.parameters()], lr=0.1)
        for _ in range(3):
            features = body(torch.randn(5, 3))
            value, action = critic(features), actor(features)
            value.square().mean().backward(retain_graph=True)
            with by_hand(hands["critic"]):
                of_critic.step()
            of_critic.zero_grad()
            action.square().mean().backward()
            with by_hand(hands["body"], hands["actor"]):
                of_actor.step()
            of_actor.zero_grad()
            for hand in hands.values():
                hand.end()
    for name, hand in hands.items():
        assert_same_rows(recorded(tmp_path, name), hand.rows)
    assert TrainingRun(tmp_path / "run").info["steps"] == 3


TOKENS = torch.tensor(20.0)  # of a step of 4 passes
# How a loss is divided, how often in a step, and the rule by which the losses make one.
DIVIDED: list[tuple[Callable[[Tensor], Tensor], int, str]] = [
    (lambda loss: loss / 4, 4, "sum"),
    (lambda loss: loss * (1 / 4), 4, "sum"),
    (lambda loss: 5 * loss / TOKENS, 4, "sum"),
    (lambda loss: (5 * loss / TOKENS).double() / 1, 4, "sum"),
    (lambda loss: loss, 1, ""),
    (lambda loss: loss / 4, 1, ""),
    (lambda loss: loss, 4, "mean"),
    (lambda loss: loss / 16, 4, "mean"),
    (lambda loss: loss / torch.tensor(16.0), 4, "mean"),
    (lambda loss: (loss / 4).square(), 4, "mean"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("divide", "passes", "rule"), DIVIDED)
@pytest.mark.parametrize("optimizers", [1, 2])
def test_losses_are_added_up_if_the_script_divides_them_by_their_number_else_averaged(
    tmp_path: Path, divide: Callable[[Tensor], Tensor], passes: int, rule: str, optimizers: int
) -> None:
    models = [nn.Linear(3, 2) for _ in range(optimizers)]
    sums = []
    with watched(tmp_path):
        steppers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(3):
            sums.append([])
            for model, optimizer in zip(models, steppers, strict=True):
                losses = [divide(model(torch.randn(5, 3)).square().mean()) for _ in range(passes)]
                for loss in losses:
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total = sum(loss.item() for loss in losses)
                sums[-1].append(total / (1 if rule == "sum" else passes))
    assert TrainingRun(tmp_path / "run").info["loss"] == (
        rule if optimizers == 1 else rule or "mean"
    )
    shares = 1 if rule == "sum" else optimizers
    assert curve(tmp_path) == pytest.approx([sum(parts) / shares for parts in sums], rel=1e-5)
    for n, name in enumerate(("SGD", "SGD2")[: 2 * (optimizers - 1)]):
        assert curve(tmp_path, name) == pytest.approx([parts[n] for parts in sums], rel=1e-5)


def test_a_step_that_has_begun_when_the_script_ends_is_counted(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(5, 3)).square().mean().backward()
            if step < 3:
                optimizer.step()
    run = TrainingRun(tmp_path / "run")
    assert run.info["steps"] == len(run.steps) == len(run.layers) == 4


def test_lbfgs_has_the_last_gradient_and_the_whole_update(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    hand = ByHand(model)
    x = torch.randn(9, 3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        hand.look()
        return loss

    with watched(tmp_path):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
        for _ in range(3):
            hand.before_step(clips=False)
            optimizer.step(closure)
            hand.after_step()
            hand.end()
    assert_same_rows(recorded(tmp_path), hand.rows)


@pytest.mark.parametrize("clips", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_a_scaled_loss_is_measured_as_if_it_were_not(
    tmp_path: Path, fused: bool, clips: bool
) -> None:
    model = net()
    hand, losses, scales, skips = ByHand(model), [], [], []
    with watched(tmp_path, what="activations,gradients,parameters"):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(6):
            loss = model(torch.randn(4, 6)).square().mean() * (3e38 if step == 3 else 1)
            optimizer.zero_grad()
            scale = scaler.get_scale()
            scaled = scaler.scale(loss)
            scaled.backward()
            hand.look(scale)
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if step != 3:
                hand.before_step(scale=1.0 if clips else scale)
            scaler.step(optimizer)
            if step != 3:
                hand.after_step()
            scaler.update()
            hand.end(scale)
            losses.append(scaled.item() / scale)
            scales.append(scale)
            skips.append(float(step == 3))
    rows = recorded(tmp_path)
    rows[3].pop(("gradients", "clipped"), None)  # of infinite gradients it says nothing
    assert_same_rows(rows, hand.rows)
    assert curve(tmp_path, key="loss_scale") == scales
    assert curve(tmp_path, key="loss_scale", measure="skipped") == skips
    assert curve(tmp_path) == pytest.approx(losses, rel=1e-6)
    assert rows[3]["0/weight.grad", "nonfinite"] > 0


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    model = net()
    hand = ByHand(model)
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for bad in (1.0, float("nan"), float("inf"), 2.0):
            x = torch.ones(4, 6)
            x[1, 2] = bad
            hand.step(optimizer, model(x).square().sum())
    rows = recorded(tmp_path)
    for row in (*rows, *hand.rows):
        row.pop(("gradients", "clipped"), None)  # of infinite gradients it says nothing
        for key in [key for key in row if ".update" in key[0]]:
            row.pop(key)  # 0 * inf
    for row, other in zip(rows, hand.rows, strict=True):
        for key in [key for key, value in row.items() if key[1] == "norm" and value != value]:
            assert other[key] != other[key], key
            assert row.pop(key) != other.pop(key)
    assert_same_rows(rows, hand.rows)
    # The NaN reached the weights.
    assert [row["0/output", "nonfinite"] for row in rows] == [0, 10, 40, 40]


@pytest.mark.parametrize("to_none", [True, False])
def test_an_optimizer_within_the_backward_pass(tmp_path: Path, to_none: bool) -> None:
    """It steps, and clears the gradient, before the backward pass has ended."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    expected: list[dict[str, float]] = []

    def step(p: nn.Parameter) -> None:
        before, norm = p.detach().clone(), p.grad.norm().item()
        optimizers[p].step()
        optimizers[p].zero_grad(set_to_none=to_none)
        expected[-1][names[p]] = (norm, (before - p.detach()).norm().item())

    names = {p: name.replace(".", "/") for name, p in model.named_parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    with watched(tmp_path):
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for _ in range(3):
            expected.append({})
            model(torch.randn(6, 4)).square().sum().backward()
    rows = recorded(tmp_path)
    for row, numbers in zip(rows, expected, strict=True):
        for key, (norm, update) in numbers.items():
            assert row[f"{key}.grad", "norm"] == pytest.approx(norm, rel=1e-6)
            assert row[f"{key}.update", "norm"] == pytest.approx(update, rel=1e-6)
        assert ("0/output.grad", "norm") in row


def test_each_fold_has_a_model_and_an_optimizer(tmp_path: Path) -> None:
    """Later objects may have the ids of those that are gone."""
    with watched(tmp_path):
        for fold in range(3):
            model = nn.Linear(3, 2 + fold)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(2, 3)).sum().backward()
                optimizer.step()
            del model, optimizer
    run = TrainingRun(tmp_path / "run")
    assert [entry["name"] for entry in run.info["optimizers"]] == ["SGD", "SGD2", "SGD3"]
    assert [entry["name"] for entry in run.info["models"]] == ["model", "model2", "model3"]
    assert run.info["steps"] == 6
    for n, name in enumerate(("model", "model2", "model3")):
        found = run.layers.curve(Series(name, "./weight.update", "norm"))
        assert found.steps.tolist() == [2 * n, 2 * n + 1]


@pytest.mark.parametrize("no_grad", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("stop_on", [(), ("nan", "inf")], ids=["", "stop-on"])
def test_an_evaluation_is_no_part_of_a_step_and_a_teacher_is(
    tmp_path: Path, no_grad: Callable[[], AbstractContextManager[None]], stop_on: tuple[str, ...]
) -> None:
    model, teacher = nn.Linear(3, 3), nn.Linear(3, 3).eval()
    expected = []
    with watched(tmp_path, stop_on=stop_on):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(4, 3)
            with no_grad():
                target = teacher(x)
            output = model(x)
            (output - target).square().sum().backward()
            optimizer.step()
            expected.append([tensor.abs().max().item() for tensor in (output, target)])
            model.eval()
            with no_grad():
                model(100 * x)
            model.train()
    for n, name in enumerate(("model", "teacher")):
        found = [row["./output", "max"] for row in recorded(tmp_path, name)]
        assert found == [pair[n] for pair in expected]
    [entry] = TrainingRun(tmp_path / "run").info["unwatched"]
    assert "evaluation" in entry["what"]


class Overriding(nn.Linear):
    """Has a method ``parameters`` without the argument of PyTorch's."""

    def parameters(self) -> Iterator[nn.Parameter]:  # type: ignore[override]
        return iter((self.weight, self.bias))


# What makes a second network, from the first one, and the step in which it is made.
MADE: dict[str, tuple[Callable[[nn.Module], Any], int]] = {
    "new": (lambda model: nn.Sequential(nn.Linear(2, 3), nn.Tanh()), 0),
    "copied": (copy.deepcopy, 0),
    "nested": (
        lambda model: Module(lambda self, x: self.body(x), body=nn.Sequential(nn.Linear(2, 2))),
        0,
    ),
    "overriding": (lambda model: Overriding(2, 2), 0),
    "in the middle": (lambda model: nn.Linear(2, 3), 2),
}


@pytest.mark.parametrize("how", MADE)
def test_a_network_made_after_the_optimizer_is_measured_from_its_first_call(
    tmp_path: Path, how: str
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rms, grads = [], []
    make, begin = MADE[how]
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        judge = None if begin else make(model)
        for step in range(4):
            x = torch.randn(5, 3)
            y = model(x)
            if step == begin > 0:  # a step that has begun is measured without it
                judge = make(model)
            if judge is not None:
                y = judge(x if how == "copied" else y)
                rms.append(y.detach().square().mean().sqrt().item())
                y.register_hook(lambda grad: grads.append(grad.norm().item()))
            optimizer.zero_grad()
            (y.square().mean() + model(x).mean()).backward()
            optimizer.step()
    run = TrainingRun(tmp_path / "run")
    assert [entry["name"] for entry in run.info["models"]] == ["model", "judge"]
    found = run.curve("./output", "rms", "judge")
    first = begin and begin + 1
    assert found.steps.tolist() == list(range(first, 4))
    assert found.values.tolist() == pytest.approx(rms[first - begin :], rel=1e-6)
    norms = run.curve("./output.grad", "norm", "judge").values.tolist()
    assert norms == pytest.approx(grads[-len(norms) :], rel=1e-6)
    assert run.info["unwatched"] == []


def test_modules_that_are_made_in_each_step_and_are_gone_cost_no_search(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with watched(tmp_path, every=20) as watcher:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(60):
            nn.Linear(2, 2)
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
        assert watcher._models._searches == 1
    assert TrainingRun(tmp_path / "run").info["unwatched"] == []


def test_an_old_nan_in_the_gradient_of_another_model_ends_nothing(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight.grad = torch.full((2, 2), math.nan)
    with watched(tmp_path, stop_on=("nan",)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert len(recorded(tmp_path, "model")) == 2
