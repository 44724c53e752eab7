"""The oracle of measures: numbers of a training, by hooks and loops written out in plain torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope.specs.watch_options import WatchOptions
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.training_run import RunTable, TrainingRun
from hookscope.training.run_session import run_info
from hookscope.training.watcher import Watcher

Row = dict[tuple[str, str], float]  # by key and measure
EXACT = {"max", "zeros", "dead", "nonfinite", "lr", "samples", "tokens", "skipped"}


@contextmanager
def watched(folder: Path, **options: object) -> Iterator[Watcher]:
    """Watch the training in the block; the run is in ``folder / "run"``."""
    wanted = WatchOptions(**{"every": 1, **options})
    (folder / "run").mkdir()
    watcher = Watcher(wanted, RunWriter(folder / "run", run_info("train.py", [], wanted)))
    watcher.install()
    try:
        yield watcher
    finally:
        watcher.finish("finished", 0)
    assert not watcher.writer.info["incomplete"], watcher.writer.info["incomplete"]


def rows_of(table: RunTable, model: str) -> list[Row]:
    """What was recorded of a model, by step."""
    rows: dict[int, Row] = {int(step): {} for step in table.steps}
    for series in table.series:
        if series.model == model:
            curve = table.curve(series)
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows[int(step)][series.key, series.measure] = float(value)
    return [rows[step] for step in range(len(rows))]


def recorded(folder: Path, model: str = "model") -> list[Row]:
    """The rows of the layers of a model."""
    return rows_of(TrainingRun(folder / "run").layers, model)


def recorded_steps(folder: Path) -> list[Row]:
    """The rows of steps, without those of optimizers."""
    return rows_of(TrainingRun(folder / "run").steps, "")


def assert_same_rows(found: list[Row], expected: list[Row]) -> None:
    """That both have the same keys, and the same numbers."""
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert not ours.keys() ^ theirs.keys(), f"step {step}"
        for name, value in theirs.items():
            near: object = pytest.approx(value, rel=1e-6, abs=1e-30, nan_ok=True)
            if name[1] == "clipped":  # a difference from 1
                near = pytest.approx(value, abs=3e-7)
            elif name[1] in EXACT and not math.isnan(value):
                near = float(np.float32(value))
            assert ours[name] == near, f"step {step}, {name}"


class ByHand:
    """Numbers of one model, step by step."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._outputs: dict[str, list[Tensor]] = defaultdict(list)
        self._arrived: dict[str, list[Tensor]] = defaultdict(list)
        self._row: Row = {}
        self._before: dict[str, Tensor] = {}
        self._norm = 0.0
        self._without_graph: set[str] = set()
        self._without_units: set[str] = set()
        self._last: tuple[Tensor | None, int, bool] = None, 0, False
        for name, module in model.named_modules():
            module.register_forward_hook(partial(self._after, name or "."))

    def _after(self, name: str, module: nn.Module, args: object, output: object) -> None:
        several = isinstance(output, tuple)
        for n, tensor in enumerate(output if several else (output,)):
            key = f"{name}/output.{n}" if several else f"{name}/output"
            recomputed = torch._C._current_graph_task_id() != -1
            if not recomputed:
                self._outputs[key].append(tensor.detach().clone())
            if tensor.requires_grad and (not recomputed or key in self._without_graph):
                tensor.register_hook(lambda grad, key=key: self._arrived[key].append(grad.clone()))
            elif not recomputed:
                self._without_graph.add(key)
            # A module that returns what its last child returned has the same units as that.
            has_units = isinstance(module, nn.ReLU) or any(module.children())
            last, version, of_last = self._last
            if last is tensor and version == tensor._version:
                has_units = of_last
            self._last = tensor, tensor._version, has_units
            if not has_units:
                self._without_units.add(key)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self._model.named_parameters():
            module, _, own = name.rpartition(".")
            yield f"{module or '.'}/{own}", parameter

    def look(self, scale: float = 1.0) -> None:
        """Look at the gradients: after the backward pass, before clipping."""
        squares = []
        for key, parameter in self._parameters():
            if parameter.grad is None:
                if parameter.requires_grad:
                    self._row[f"{key}.grad", "norm"] = 0.0
                continue
            grad = parameter.grad.to_dense().double() / scale
            self._row[f"{key}.grad", "norm"] = norm = grad.norm().item()
            self._row[f"{key}.grad", "nonfinite"] = (~grad.isfinite()).sum().item()
            squares.append(norm**2)
        self._norm = math.sqrt(sum(squares))
        self._row["gradients", "norm"] = self._norm

    def before_step(self, *, clips: bool = True, scale: float = 1.0) -> None:
        """Look at what the optimizer gets; ``clips`` unless it computes the gradients itself."""
        squares = 0.0
        for key, parameter in self._parameters():
            if parameter.requires_grad:
                self._before[key] = parameter.detach().clone()
            if parameter.grad is not None:
                squares += (parameter.grad.to_dense().double() / scale).square().sum().item()
        if clips and self._norm:
            self._row["gradients", "clipped"] = max(1 - math.sqrt(squares) / self._norm, 0.0)

    def after_step(self) -> None:
        """Look at the update."""
        for key, parameter in self._parameters():
            if key in self._before:
                before = self._before[key]
                update = (before - parameter.detach()).double().norm().item()
                self._row[f"{key}.update", "norm"] = update
                if norm := before.double().norm().item():
                    self._row[f"{key}.update", "ratio"] = update / norm

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        """A whole step of a training: the gradients of ``loss``, the optimizer's step, its end."""
        optimizer.zero_grad()
        loss.backward()
        with by_hand(self):
            optimizer.step()
        self.end()

    def clip(self, norm: float) -> None:
        """Clip the gradients, as a script does."""
        nn.utils.clip_grad_norm_(self._model.parameters(), norm)

    def also(self, key: str, measure: str, value: float) -> None:
        """Note a number that the test has computed."""
        self._row[key, measure] = value

    def end(self, scale: float = 1.0) -> None:
        """End the step."""
        for key, parameter in self._parameters():
            weight = self._before.get(key, parameter.detach())
            self._row[key, "norm"] = weight.double().norm().item()
        for key, outputs in self._outputs.items():
            values = torch.cat([output.double().flatten() for output in outputs])
            self._row[key, "rms"] = values.square().mean().sqrt().item()
            self._row[key, "max"] = values.abs().max().item()
            self._row[key, "nonfinite"] = (~values.isfinite()).sum().item()
            self._row[key, "zeros"] = (values == 0).float().mean(dtype=torch.double).item()
            if key not in self._without_units and outputs[0].ndim > 1:
                self._row[key, "dead"] = _dead(outputs)
        for key, grads in self._arrived.items():
            values = torch.cat([grad.double().flatten() for grad in grads]) / scale
            self._row[f"{key}.grad", "norm"] = values.norm().item()
            self._row[f"{key}.grad", "max"] = values.abs().max().item()
            self._row[f"{key}.grad", "nonfinite"] = (~values.isfinite()).sum().item()
        self.rows.append(self._row)
        self._row, self._before, self._norm = {}, {}, 0.0
        self._outputs.clear()
        self._arrived.clear()
        self._without_graph.clear()


@contextmanager
def by_hand(*hands: ByHand, clip: float | None = None) -> Iterator[None]:
    """Look at the gradients, clip them, and look at the optimizer's step, which the block makes."""
    for hand in hands:
        hand.look()
        if clip is not None:
            hand.clip(clip)
        hand.before_step()
    yield
    for hand in hands:
        hand.after_step()


def _dead(outputs: list[Tensor]) -> float:
    """Share of units that are zero in all calls; of tokens or features, where fewer are."""
    shares = []
    for dim in (1, 2) if outputs[0].ndim == 3 else (1,):
        by_unit = torch.cat([output.transpose(0, dim).flatten(1) for output in outputs], dim=1)
        shares.append(1 - (by_unit != 0).any(1).double().mean().item())
    return min(shares)
