"""How little a device is given to compute in a sampled step, and that the numbers are the same."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.operators import OPTIMIZERS, Counting, StepCounts, added, as_on_a_device, mlp
from hookscope.specs.watch_options import ACTIVATIONS, GRADIENTS, PARAMETERS, WATCHED
from hookscope.training import tensor_measures
from hookscope.training.bad_value_stop import TrainingStopped
from tests.training.measured_by_hand import (
    Row,
    assert_same_rows,
    recorded,
    recorded_steps,
    watched,
)
from tests.training.test_measures import net
from tests.zoo import Module

pytestmark = pytest.mark.usefixtures("no_other_models")


def by_size(kind: str = "sgd", **options: object) -> tuple[list[StepCounts], list[StepCounts]]:
    """What is added to the steps of a network of 2 linear layers, and to those of one of 4."""
    found = []
    for pairs in (2, 4):
        model, batch = mlp(pairs)
        optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.01)
        found.append(added(model, batch, optimizer, **options))
    return found[0], found[1]


# Of a pair of a linear layer and a ReLU: two outputs, two gradients at them, two parameters.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "what", "operators"),
    [
        ("sgd", (ACTIVATIONS,), 5 * 2),
        ("sgd", (GRADIENTS,), 5 * 2 + 4 * 2),  # for which the outputs are measured, too
        ("sgd", (PARAMETERS,), 1 * 2),
        ("sgd", WATCHED, 10 * 2),
        # Its counts of steps are taken to be on the device, as those of a fused one are.
        ("adamw", WATCHED, 11 * 2),
    ],
)
def test_a_sampled_step_gives_a_device_few_operators_for_each_tensor(
    kind: str, what: tuple[str, ...], operators: int
) -> None:
    (*_, small), (*_, large) = by_size(kind, every=2, what=what)
    assert large.operators.total() - small.operators.total() == 2 * operators
    assert large.waits == small.waits == 0
    # One copy for each dtype: the measures, and the bytes of the batch for its hash.
    assert len(large.transfers) == len(set(large.transfers)) <= 2


def test_other_steps_give_it_nothing_but_the_loss(tmp_path: Path) -> None:
    (_, small, _), (_, large, _) = by_size(every=2)
    assert large.operators == small.operators
    assert large.operators.total() <= 3 and large.waits == 0 and len(large.transfers) == 1


def test_no_hook_is_called_in_other_steps(tmp_path: Path) -> None:
    model, batch = mlp(2)
    hooks = []
    with watched(tmp_path, every=2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = model(batch).sum()
            modules = list(model.modules())
            on_tensors = loss.grad_fn.next_functions[0][0].metadata  # read, so that it exists
            hooks.append(sum(len(one._forward_hooks) for one in modules) + len(on_tensors))
            loss.backward()
            optimizer.step()
    assert hooks == [5, 0, 5, 0]


Train = Callable[[nn.Module, Tensor, float], None]


def plainly(model: nn.Module, batch: Tensor, bad: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for factor in (1.0, 2.0, bad):
        optimizer.zero_grad()
        model(factor * batch).abs().square().sum().backward()
        optimizer.step()


def skipping(model: nn.Module, batch: Tensor, bad: float) -> None:
    """With a fused optimizer, which skips the last step itself."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, 2.0, bad):
        optimizer.zero_grad()
        scaler.scale(model(factor * batch).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def complex_numbers() -> nn.Module:
    """Returns complex numbers, and has real weights and complex ones."""
    return Module(
        lambda self, x: self.inner(self.first(x).to(torch.complex64)),
        first=nn.Linear(6, 6),
        inner=nn.Linear(6, 5, dtype=torch.complex64),
    )


TRAININGS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Train]] = {
    "float32": (net, (7, 6), plainly),
    "float64": (lambda: net(torch.float64), (7, 6), plainly),
    "bfloat16": (lambda: net(torch.bfloat16), (7, 6), plainly),
    "tokens": (net, (2, 3, 6), plainly),
    "one row": (net, (1, 6), plainly),
    "one vector": (net, (6,), plainly),
    "complex": (complex_numbers, (7, 6), plainly),
    "skipping": (net, (7, 6), skipping),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bad", [3.0, math.nan, math.inf])
@pytest.mark.parametrize("case", TRAININGS)
def test_the_numbers_are_those_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, bad: float
) -> None:
    monkeypatch.setattr(tensor_measures, "COUNTED", 20)
    monkeypatch.setattr(tensor_measures, "GROUP", 20)
    make, shape, train = TRAININGS[case]
    found: list[list[Row]] = []
    for around in (nullcontext, as_on_a_device):
        torch.manual_seed(0)
        model = make()
        batch = torch.randn(shape).to(next(model.parameters()).dtype)
        folder = tmp_path / around.__name__
        folder.mkdir()
        with around(), watched(folder):
            train(model, batch, bad)
        found += [[_without_nan(row) for row in recorded(folder)], recorded_steps(folder)]
        for row in found[-1]:
            row.pop(("step", "seconds"), None)
        del model
        gc.collect()
    on_host, steps_on_host, on_device, steps_on_device = found
    assert_same_rows(on_device, on_host)
    assert_same_rows(steps_on_device, steps_on_host)
    is_skipped = case == "skipping" and not math.isfinite(bad)
    assert any(key.endswith(".update") for key, _ in on_device[2]) != is_skipped
    if not math.isfinite(bad):
        counts = [value for (_, measure), value in on_device[2].items() if measure == "nonfinite"]
        assert max(counts) > 0


def _without_nan(row: Row) -> Row:
    """A row with a number for NaN, which does not equal itself."""
    return {name: -2.0 if math.isnan(value) else value for name, value in row.items()}


def test_a_fused_optimizer_and_its_scaler_are_waited_for_no_more_than_by_themselves(
    tmp_path: Path,
) -> None:
    waits = []
    for around in (nullcontext(), watched(tmp_path)):
        model, batch = mlp(2)
        with as_on_a_device(), around, Counting() as mode:
            skipping(model, batch, 3.0)
        waits.append(mode.waits)
    assert waits[0] == waits[1]


# The stop at a bad value -------------------------------------------------------------------------


def test_the_stop_waits_for_all_parameters_together() -> None:
    (*_, small), (*_, large) = by_size(every=2, stop_on="nan,inf", what=(PARAMETERS,))
    assert large.waits - small.waits == 2 * 4  # two outputs of a pair, and their gradients
    model, _ = mlp(2)
    outputs = len(list(model.modules()))
    assert small.waits == 2 * outputs + 3  # and the loss, all gradients, all weights


class Overwriting(torch.optim.SGD):
    """Writes a value into some weights after its step."""

    bad: tuple[float, list[Tensor]] = 0.0, []

    def step(self) -> None:  # type: ignore[override]
        super().step()
        value, weights = self.bad
        for weight in weights:
            weight.data.fill_(value)


def break_something(model: nn.Sequential, optimizer: Overwriting, where: str, bad: float) -> None:
    """Make a value of the last layers bad in the next step."""
    linear, relu = model[4], model[5]
    if where == "output":
        linear.forward = lambda x: torch.full_like(x, bad) * linear.weight.sum() ** 2
    if where == "input.0":  # the gradient there

        def forward(x: Tensor) -> Tensor:
            y = x * 1
            y.register_hook(lambda grad: torch.full_like(grad, bad))
            return y.relu()

        relu.forward = forward
    if where == "gradient of weight":
        for weight in linear.parameters():
            weight.register_hook(lambda grad: torch.full_like(grad, bad))
    if where == "value of weight":
        optimizer.bad = bad, list(linear.parameters())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("around", [nullcontext, as_on_a_device])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("where", "layer"),
    [
        ("output", "4"),
        ("input.0", "5"),
        ("gradient of weight", "4"),
        ("value of weight", "4"),
    ],
)
def test_the_stop_names_the_first_layer_that_is_bad(
    tmp_path: Path,
    where: str,
    layer: str,
    bad: float,
    around: Callable[[], AbstractContextManager[object]],
) -> None:
    model, batch = mlp(3)
    with around(), watched(tmp_path, stop_on=("nan", "inf")):
        optimizer = Overwriting(model.parameters(), lr=0.1)
        with pytest.raises(TrainingStopped) as stopped:
            for step in range(3):
                if step == 1:
                    break_something(model, optimizer, where, bad)
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
    event = stopped.value.event
    assert (event.step, event.layer, event.kind) == (1, layer, "nan" if math.isnan(bad) else "inf")
    assert event.message.endswith(where)
    assert (tmp_path / "run" / event.file).is_file()


def test_a_weight_whose_square_is_out_of_range_is_not_bad(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with as_on_a_device(), watched(tmp_path, stop_on=("nan", "inf")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with torch.no_grad():
            model.bias[0] = 1e30
        for _ in range(2):
            model(torch.ones(1, 2)).mean().backward()
            optimizer.step()
    assert len(recorded(tmp_path)) == 2
