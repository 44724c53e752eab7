"""What the watcher records is what hooks written by hand find in the same training."""

from __future__ import annotations

import copy
import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from tests.training.measured_by_hand import (
    ByHand,
    assert_same_rows,
    recorded,
    recorded_steps,
    rows_of,
    watched,
)


@pytest.fixture(autouse=True)
def no_other_models() -> Iterator[None]:
    """The watcher finds all modules that exist, so those of other tests must be gone."""
    gc.collect()
    yield


def net(**options: torch.dtype) -> nn.Sequential:
    """A network with a dead unit, and with zeros beside it."""
    model = nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.LayerNorm(10), nn.Linear(10, 4), nn.Tanh()
    ).to(**options)
    with torch.no_grad():
        model[0].bias[3] = -100
    return model


def curve(folder: Path, series: Series) -> list[float]:
    return TrainingRun(folder / "run").steps.curve(series).values.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layers_gradients_weights_and_updates(tmp_path: Path, dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    model[3].bias.requires_grad_(False)
    hand, losses = ByHand(model), []
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for _ in range(4):
            loss = model(torch.randn(7, 6, dtype=dtype)).square().sum()
            hand.step(optimizer, loss)
            losses.append(loss.item())
    assert_same_rows(recorded(tmp_path), hand.rows)
    steps = recorded_steps(tmp_path)
    assert [row["loss", "value"] for row in steps] == pytest.approx(losses, rel=1e-7)
    assert {row["batch", "samples"] for row in steps} == {7}
    assert hand.rows[0]["1/output", "dead"] > 0.09


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
            hand.look()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            hand.before_step()
            grads = {id(p): p.grad.clone() for p in model.parameters()}
            optimizer.step()
            hand.after_step()
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
    assert curve(tmp_path, Series("", "loss", "value")) == pytest.approx(losses, rel=1e-7)
    assert {row["batch", "samples"] for row in recorded_steps(tmp_path)} == {11}
    for group in (0, 1):
        found = curve(tmp_path, Series("AdamW", f"groups.{group}", "lr"))
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


class Twice(nn.Module):
    """Calls a module twice, changes its output in place, and returns several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, 9)
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.block(self.block(self.embedding(tokens)))
        states, _ = self.rnn(x)
        return self.out(states)


def test_calls_of_one_module_count_together(tmp_path: Path) -> None:
    model = Twice()
    hand = ByHand(model)
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            tokens = torch.randint(0, 9, (4, 7))
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            hand.step(optimizer, loss)
    assert_same_rows(recorded(tmp_path), hand.rows)
    assert hand.rows[0]["unused/weight.grad", "norm"] == 0
    assert {row["batch", "samples"] for row in recorded_steps(tmp_path)} == {4}
    assert {row["batch", "tokens"] for row in recorded_steps(tmp_path)} == {28}


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_does_not_count_twice(tmp_path: Path, reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    hand = ByHand(model)
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.randn(3, 4)).square().sum()
            hand.step(optimizer, loss)
    assert_same_rows(recorded(tmp_path), hand.rows)
    assert ("blocks.1.0/output.grad", "norm") in hand.rows[0]


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
            loss = (
                critic(generator(torch.randn(5, 2)).detach()).mean()
                - critic(torch.randn(5, 3)).mean()
            )
            loss.backward()
            hands["critic"].look()
            hands["critic"].before_step()
            of_critic.step()
            hands["critic"].after_step()
            generator.zero_grad()
            second = -critic(generator(torch.randn(5, 2))).mean()
            second.backward()
            hands["generator"].look()
            hands["generator"].before_step()
            of_generator.step()
            hands["generator"].after_step()
            for hand in hands.values():
                hand.end()
            losses.append((loss.item(), second.item()))
    for name, hand in hands.items():
        assert_same_rows(recorded(tmp_path, name), hand.rows)
    run = TrainingRun(tmp_path / "run")
    assert [entry["models"] for entry in run.info["optimizers"]] == [["critic"], ["generator"]]
    for n, name in enumerate(("SGD", "SGD2")):
        found = curve(tmp_path, Series(name, "loss", "value"))
        assert found == pytest.approx([pair[n] for pair in losses], rel=1e-7)


def test_optimizers_used_one_after_the_other_have_steps_of_their_own(tmp_path: Path) -> None:
    """First the head alone, then everything."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    hand, losses = ByHand(model), []
    with watched(tmp_path):
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        whole = torch.optim.RMSprop(model.parameters(), lr=0.01)
        for optimizer, steps in ((head, 3), (whole, 4)):
            for _ in range(steps):
                loss = model(torch.randn(7, 6)).square().mean()
                hand.step(optimizer, loss)
                losses.append(loss.item())
    rows = recorded(tmp_path)
    for row, by_hand in zip(rows[:3], hand.rows[:3], strict=True):
        for key in ("0/weight", "0/bias"):  # which this optimizer does not have
            for measure in ("norm", "ratio"):
                by_hand.pop((f"{key}.update", measure), None)
        by_hand["gradients", "clipped"] = row["gradients", "clipped"]
    assert_same_rows(rows, hand.rows)
    assert curve(tmp_path, Series("", "loss", "value")) == pytest.approx(losses, rel=1e-7)
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
            hands["critic"].look()
            hands["critic"].before_step()
            of_critic.step()
            hands["critic"].after_step()
            of_critic.zero_grad()
            action.square().mean().backward()
            for name in ("body", "actor"):
                hands[name].look()
                hands[name].before_step()
            of_actor.step()
            for name in ("body", "actor"):
                hands[name].after_step()
            of_actor.zero_grad()
            for hand in hands.values():
                hand.end()
    for name, hand in hands.items():
        assert_same_rows(recorded(tmp_path, name), hand.rows)
    assert TrainingRun(tmp_path / "run").info["steps"] == 3


DIVIDED = {
    "divided by their number": lambda loss, number, tokens: loss / number,
    "multiplied by its inverse": lambda loss, number, tokens: loss * (1 / number),
    "divided by the tokens of the step": lambda loss, number, tokens: 5 * loss / tokens,
    "divided by that and 1": lambda loss, number, tokens: (5 * loss / tokens).double() / 1,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", DIVIDED)
@pytest.mark.parametrize("optimizers", [1, 2])
def test_losses_that_the_script_divides_are_added_up(
    tmp_path: Path, how: str, optimizers: int
) -> None:
    models = [nn.Linear(3, 2) for _ in range(optimizers)]
    sums = []
    with watched(tmp_path):
        steppers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(3):
            sums.append([])
            for model, optimizer in zip(models, steppers, strict=True):
                tokens = torch.tensor(20.0)
                sums[-1].append(0.0)
                for _ in range(4):
                    loss = model(torch.randn(5, 3)).square().mean()
                    loss = DIVIDED[how](loss, 4, tokens)
                    loss.backward()
                    sums[-1][-1] += loss.item()
                optimizer.step()
                optimizer.zero_grad()
    found = curve(tmp_path, Series("", "loss", "value"))
    assert found == pytest.approx([sum(parts) for parts in sums], rel=1e-5)
    assert TrainingRun(tmp_path / "run").info["loss"] == "sum"
    if optimizers == 2:
        for n, name in enumerate(("SGD", "SGD2")):
            found = curve(tmp_path, Series(name, "loss", "value"))
            assert found == pytest.approx([parts[n] for parts in sums], rel=1e-5)


@pytest.mark.parametrize(
    ("divide", "passes", "rule"),
    [
        (lambda loss: loss, 1, ""),
        (lambda loss: loss / 4, 1, ""),
        (lambda loss: loss, 4, "mean"),
        (lambda loss: loss / 16, 4, "mean"),
        (lambda loss: loss / torch.tensor(16.0), 4, "mean"),
        (lambda loss: (loss / 4).square(), 4, "mean"),
    ],
)
def test_losses_that_are_not_divided_by_their_number_are_averaged(
    tmp_path: Path, divide, passes: int, rule: str
) -> None:
    model, means = nn.Linear(3, 2), []
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            losses = []
            for _ in range(passes):
                loss = divide(model(torch.randn(5, 3)).square().mean())
                loss.backward()
                losses.append(loss.item())
            means.append(sum(losses) / passes)
            optimizer.step()
    assert curve(tmp_path, Series("", "loss", "value")) == pytest.approx(means, rel=1e-5)
    assert TrainingRun(tmp_path / "run").info["loss"] == rule


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
    assert curve(tmp_path, Series("", "loss_scale", "value")) == scales
    assert curve(tmp_path, Series("", "loss_scale", "skipped")) == skips
    assert curve(tmp_path, Series("", "loss", "value")) == pytest.approx(losses, rel=1e-6)
    assert rows[3]["0/weight.grad", "nonfinite"] > 0


def test_sparse_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(8, 3, sparse=True), nn.Linear(3, 8))
    hand = ByHand(model)
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            tokens = torch.tensor([[1, 1, 5], [1, 2, 5]])
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            hand.step(optimizer, loss)
    assert_same_rows(recorded(tmp_path), hand.rows)


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
    assert len(rows) == 3
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
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, 3)).sum().backward()
                optimizer.step()
            del model, optimizer
    run = TrainingRun(tmp_path / "run")
    assert [entry["name"] for entry in run.info["optimizers"]] == ["SGD", "SGD2", "SGD3"]
    assert [entry["name"] for entry in run.info["models"]] == ["model", "model2", "model3"]
    assert run.info["steps"] == 12
    for n, name in enumerate(("model", "model2", "model3")):
        found = run.layers.curve(Series(name, "./weight.update", "norm"))
        assert found.steps.tolist() == list(range(4 * n, 4 * n + 4))


def test_attention_has_an_output_for_each_tensor(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    template = nn.Linear(3, 3)  # a model that is neither called nor trained
    seen: list[float] = []
    model.norm2.register_forward_hook(lambda _, args, out: seen.append(out.abs().max().item()))
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 5, 8)).square().sum().backward()
            optimizer.step()
    run = TrainingRun(tmp_path / "run")
    assert {series.model for series in run.layers.series} == {"model"}
    assert "self_attn/output.0" in {series.key for series in run.layers.series}
    assert [row["norm2/output", "max"] for row in recorded(tmp_path)] == seen
    assert template.weight.grad is None


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
    assert entry["what"] == "calls of model in evaluation"


@pytest.mark.parametrize("how", ["made", "copied", "inside", "overriding", "in the middle"])
def test_a_network_made_after_the_optimizer_is_measured_from_its_first_call(
    tmp_path: Path, how: str
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rms, grads = [], []
    with watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        judge = copy.deepcopy(model) if how == "copied" else None
        if how == "made":
            judge = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        if how == "inside":
            judge = Judge()
        if how == "overriding":
            judge = Overriding(2, 2)
        for step in range(4):
            x = torch.randn(5, 3)
            y = model(x)
            if how == "in the middle" and step == 2:  # this step is measured without it
                judge = nn.Linear(2, 3)
            if judge is not None:
                y = judge(x if how == "copied" else y)
                rms.append(y.detach().square().mean().sqrt().item())
                if how != "copied":
                    y.register_hook(lambda grad: grads.append(grad.norm().item()))
            optimizer.zero_grad()
            (y.square().mean() + model(x).mean()).backward()
            optimizer.step()
    run = TrainingRun(tmp_path / "run")
    assert [entry["name"] for entry in run.info["models"]] == ["model", "judge"]
    found = run.curve("./output", "rms", "judge")
    first = 3 if how == "in the middle" else 0
    assert found.steps.tolist() == list(range(first, 4))
    assert found.values.tolist() == pytest.approx(rms[-len(found.steps) :], rel=1e-6)
    if grads:
        norms = run.curve("./output.grad", "norm", "judge").values.tolist()
        assert norms == pytest.approx(grads[-len(norms) :], rel=1e-6)
    assert run.info["unwatched"] == []


class Overriding(nn.Linear):
    """Has a method ``parameters`` without the argument of PyTorch's."""

    def parameters(self) -> Iterator[nn.Parameter]:  # type: ignore[override]
        return iter((self.weight, self.bias))


class Judge(nn.Module):
    """Has its parameters in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_modules_that_are_made_in_each_step_and_are_gone_cost_no_search(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with watched(tmp_path) as watcher:
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
