"""Run folders with known numbers, as the watcher writes them, for tests of their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hookscope.stores.runs.run_info import RunInfo
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series

Values = dict[Series, float]
RowValues = Callable[[int], Values]  # the values of a step


def plain_info(**changes: Any) -> RunInfo:
    """What a run of ``train.py`` says about itself while it goes on."""
    info: RunInfo = {
        "schema": 1,
        "status": "running",
        "script": "train.py",
        "arguments": ["--epochs", "3"],
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 0.0,
        "steps": 0,
        "exit_status": None,
        "every": None,
        "layers": [],
        "rank": 0,
        "world_size": 1,
        "versions": {"hookscope": "1"},
        "models": [],
        "optimizers": [],
        "unwatched": [],
        "incomplete": "",
    }
    info.update(changes)  # type: ignore[typeddict-item]
    return info


def model_info(name: str = "Net", layout: str = "whole", **layers: str) -> dict[str, Any]:
    """A model with some layers, from their names to their types."""
    entries = [{"name": layer, "type": kind} for layer, kind in layers.items()]
    return {"name": name, "type": name, "parameters": 9, "layers": entries, "layout": layout}


def run_info(models: dict[str, list[str]], optimizers: Iterable[str] = ("sgd",)) -> RunInfo:
    """Return what a finished run says, of models by name with the names of their layers."""
    kinds = {name: dict.fromkeys(layers, "Linear") for name, layers in models.items()}
    return plain_info(
        status="finished",
        arguments=["--name", "two words"],
        started="2025-01-01T10:00:00Z",
        seconds=75.0,
        exit_status=0,
        versions={"torch": "2.8.0"},
        models=[
            model_info(name, **layers) | {"type": "Net", "parameters": 10}
            for name, layers in kinds.items()
        ],
        optimizers=[
            {"name": name, "type": "SGD", "groups": 1, "models": list(models)}
            for name in optimizers
        ],
        unwatched=[{"what": "net.encode", "reason": "forward was called directly"}],
    )


def write_run(
    folder: Path,
    info: RunInfo,
    steps: int,
    of_step: RowValues,
    of_layers: RowValues,
    every: int = 1,
) -> Path:
    """Write a run of so many steps; rows of layers at every ``every``-th one. Return its folder."""
    folder.mkdir(parents=True)
    writer = RunWriter(folder, info)
    for step in range(steps):
        writer.add_row("steps", step, 0.1 * step, of_step(step))
        if step % every == 0:
            writer.add_row("layers", step, 0.1 * step, of_layers(step))
    writer.flush()
    writer.info["steps"] = steps
    writer.write_run_info()
    return folder


def loss_of(step: int) -> Values:
    """A loss that falls, and a constant learning rate."""
    return {Series("", "loss", "value"): 1 / (step + 1), Series("sgd", "groups.0", "lr"): 0.1}


def layer_values(layer: str, step: int) -> Values:
    """All kinds of values of one layer with a weight."""
    number = step + 1 + len(layer)
    return {
        Series("net", f"{layer}/output", "rms"): 1.0 / number,
        Series("net", f"{layer}/output", "zeros"): 0.25,
        Series("net", f"{layer}/output.grad", "norm"): 0.5 * number,
        Series("net", f"{layer}/weight", "norm"): 2.0,
        Series("net", f"{layer}/weight.grad", "norm"): 0.1 * number,
        Series("net", f"{layer}/weight.update", "ratio"): 1e-3 * number,
    }


def small_run(folder: Path, layers: tuple[str, ...] = ("fc1", "fc2", "."), steps: int = 20) -> Path:
    """Write a run of a model ``net``, with every step sampled."""

    def of_layers(step: int) -> Values:
        values = {Series("net", "gradients", "norm"): 1.0 + step}
        for layer in layers:
            values |= layer_values(layer, step)
        return values

    return write_run(folder, run_info({"net": list(layers)}), steps, loss_of, of_layers)
