"""Writes ``sample_models/run``, the folder of a small training run that docs and examples show.

``python -m tools.sample_run`` trains a perceptron of two layers on random data for 40 steps, in
numpy in float64, with gradients written by hand, and measures what ``hookscope run`` measures. The
numbers are the same each time; steps take a hundredth of a second each, on paper.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.stores.runs.run_info import RunInfo
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import LAYERS, STEPS, Series

FOLDER = Path(__file__).resolve().parent.parent / "sample_models" / "run"
STEP_COUNT, BATCH, SIZES, RATE = 40, 32, (8, 16, 4), 0.2
SAMPLED = (0, 1, 2, 4, 8, 16, 32)  # the default schedule
STEP_SECONDS = 0.01
Array = NDArray[np.float64]
INFO: RunInfo = {
    "schema": 1,
    "status": "running",
    "script": "train.py",
    "arguments": ["--lr", str(RATE)],
    "started": "2026-01-02T03:04:05+00:00",
    "seconds": 0.0,
    "steps": 0,
    "exit_status": None,
    "every": None,
    "layers": [],
    "rank": 0,
    "world_size": 1,
    "versions": {},
    "models": [
        {
            "name": "model",
            "type": "Sequential",
            "parameters": sum((a + 1) * b for a, b in pairwise(SIZES)),
            "layers": [
                {"name": ".", "type": "Sequential"},
                {"name": "fc1", "type": "Linear"},
                {"name": "relu", "type": "ReLU"},
                {"name": "fc2", "type": "Linear"},
            ],
            "layout": "whole",
        }
    ],
    "optimizers": [{"name": "optimizer", "type": "SGD", "groups": 1, "models": ["model"]}],
    "unwatched": [],
    "incomplete": "",
}


def train(folder: Path) -> None:
    """Train, and write the run into an empty folder."""
    generator = np.random.default_rng(0)
    weights = {
        f"fc{n}": generator.normal(0, 1 / np.sqrt(a), (b, a))
        for n, (a, b) in enumerate(pairwise(SIZES), start=1)
    }
    weights["fc1"][:2] = -abs(weights["fc1"][:2])  # two units that die: inputs are not negative
    biases = {name: np.zeros(len(weight)) for name, weight in weights.items()}
    inputs = generator.random((BATCH, SIZES[0]))
    targets = generator.integers(0, SIZES[-1], BATCH)
    writer = RunWriter(folder, INFO)
    for step in range(STEP_COUNT):
        loss, tensors = _one_step(weights, biases, inputs, targets)
        seconds = (step + 1) * STEP_SECONDS
        row = {
            Series("", "loss", "value"): loss,
            Series("", "step", "seconds"): STEP_SECONDS,
            Series("", "batch", "samples"): float(BATCH),
            Series("optimizer", "groups.0", "lr"): RATE,
        }
        writer.add_row(STEPS, step, seconds, row)
        if step in SAMPLED:
            writer.add_row(LAYERS, step, seconds, _measures(tensors))
    writer.flush()
    writer.info["status"], writer.info["exit_status"] = "finished", 0
    writer.info["steps"], writer.info["seconds"] = STEP_COUNT, STEP_COUNT * STEP_SECONDS
    writer.write_run_info()


def _one_step(
    weights: dict[str, Array], biases: dict[str, Array], inputs: Array, targets: NDArray[np.int64]
) -> tuple[float, dict[str, Array]]:
    """One step of gradient descent on the cross entropy; return it and all tensors by key."""
    rows = np.arange(len(inputs))
    first = inputs @ weights["fc1"].T + biases["fc1"]
    hidden = np.maximum(first, 0)
    output = hidden @ weights["fc2"].T + biases["fc2"]
    shares = np.exp(output - output.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    loss = float(-np.log(shares[rows, targets]).mean())
    output_grad = shares.copy()
    output_grad[rows, targets] -= 1
    output_grad /= len(inputs)
    hidden_grad = output_grad @ weights["fc2"]
    first_grad = hidden_grad * (first > 0)
    tensors = {"fc1/output": first, "relu/output": hidden, "fc2/output": output, "./output": output}
    tensors |= {"fc1/output.grad": first_grad, "relu/output.grad": hidden_grad}
    tensors |= {"fc2/output.grad": output_grad, "./output.grad": output_grad}
    for name, gradient, source in (("fc1", first_grad, inputs), ("fc2", output_grad, hidden)):
        for key, parameter, grad in (
            (f"{name}/weight", weights[name], gradient.T @ source),
            (f"{name}/bias", biases[name], gradient.sum(axis=0)),
        ):
            tensors |= {key: parameter.copy(), f"{key}.grad": grad, f"{key}.update": -RATE * grad}
            parameter -= RATE * grad
    return loss, tensors


def _measures(tensors: Mapping[str, Array]) -> dict[Series, float]:
    row: dict[Series, float] = {}

    def add(key: str, **measures: Any) -> None:
        row.update({Series("model", key, name): float(v) for name, v in measures.items()})

    for key, values in tensors.items():
        norm = np.sqrt((values**2).sum())
        largest = abs(values).max()
        if key.endswith("/output"):
            dead = (values == 0).all(axis=0).mean()
            zeros = (values == 0).mean()
            add(key, rms=norm / np.sqrt(values.size), max=largest, zeros=zeros, dead=dead)
            add(key, nonfinite=0)
        elif key.endswith("/output.grad"):
            add(key, norm=norm, max=largest, nonfinite=0)
        elif key.endswith(".grad"):
            add(key, norm=norm, nonfinite=0)
        elif key.endswith(".update"):
            before = np.sqrt((tensors[key.removesuffix(".update")] ** 2).sum())
            add(key, norm=norm, **({"ratio": norm / before} if before else {}))
        else:
            add(key, norm=norm)
    gradients = [v for key, v in tensors.items() if key.endswith(("weight.grad", "bias.grad"))]
    add("gradients", norm=np.sqrt(sum((gradient**2).sum() for gradient in gradients)))
    return row


def main() -> int:
    """Write the folder anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    train(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
