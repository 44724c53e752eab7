"""A training run made of numbers: healthy, with faults planted at exact steps and layers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import LAYERS, STEPS, Series
from tests.run_folders import model_info, plain_info

MODEL = "net"
# In execution order: a model is called last, when all its layers have returned.
TYPES = {
    **{"conv1": "Conv2d", "relu1": "ReLU", "conv2": "Conv2d", "relu2": "ReLU"},
    **{"conv3": "Conv2d", "relu3": "ReLU", "fc": "Linear", ".": "Net"},
}
TRAINED = ("conv1", "conv2", "conv3", "fc")


class HealthyRun:
    """The rows of a run of one model, to be changed and then written.

    Args:
        steps: number of steps; all are sampled unless ``sampled`` says which.
        sampled: the sampled steps.
        seed: of the noise.
        scale: what losses, outputs and gradients are multiplied by.
        model: name of the model.

    Attributes:
        tables: the value of each series by the table and the step.
        info: the content of ``run.json``.
    """

    def __init__(
        self,
        steps: int = 40,
        sampled: Iterable[int] | None = None,
        seed: int = 0,
        scale: float = 1.0,
        model: str = MODEL,
    ) -> None:
        self.model = model
        draw = np.random.default_rng(seed)

        def noisy(value: float) -> float:
            return float(value * (1 + 0.05 * draw.uniform(-1, 1)))

        sampled = range(steps) if sampled is None else sampled
        self.tables: dict[str, dict[int, dict[Series, float]]] = {
            STEPS: {
                n: {
                    Series("", "loss", "value"): noisy(scale * 2.3 * np.exp(-n / 30)),
                    Series("", "step", "seconds"): float(draw.uniform(0.1, 0.2)),
                    Series("", "batch", "samples"): 32.0,
                    Series("SGD", "groups.0", "lr"): 0.1,
                }
                for n in range(steps)
            },
            LAYERS: {n: self._layers(noisy, scale) for n in sampled},
        }
        self.info = plain_info(
            status="finished",
            seconds=1.0,
            steps=steps,
            exit_status=0,
            every=1,
            models=[model_info(model, **TYPES)],
            optimizers=[{"name": "SGD", "type": "SGD", "groups": 1, "models": [model]}],
        )

    def _layers(self, noisy: Any, scale: float) -> dict[Series, float]:
        row: dict[Series, float] = {}

        def add(key: str, **measures: float) -> None:
            row.update({Series(self.model, key, name): x for name, x in measures.items()})

        for name, kind in TYPES.items():
            output = {"rms": noisy(scale), "max": noisy(4 * scale), "zeros": 0.4}
            dead = {"dead": 0.1} if kind == "ReLU" else {}
            add(f"{name}/output", **output, **dead, nonfinite=0)
        for name in TYPES:
            norm = noisy(0.1 * scale)
            add(f"{name}/output.grad", norm=norm, max=norm / 2, nonfinite=0)
        for name in TRAINED:
            for what, size in (("weight", 5.0), ("bias", 0.1)):
                key = f"{name}/{what}"
                add(key, norm=noisy(size), adam_rms=noisy(1))
                add(f"{key}.grad", norm=noisy(0.3 * scale), nonfinite=0)
                ratio = noisy(1e-3)
                add(f"{key}.update", norm=ratio * size, ratio=ratio)
        add("gradients", norm=noisy(0.9 * scale), clipped=0)
        return row

    def series(self, key: str, measure: str) -> Series:
        """A series of the table of sampled steps if its key has a layer or is ``gradients``."""
        in_layers = "/" in key or key == "gradients"
        return Series(self.model if in_layers else "", key, measure)

    def plant(self, key: str, measure: str, value: float, steps: Iterable[int] | int) -> HealthyRun:
        """Set a value at some steps; where a step is not sampled, it has none."""
        series = self.series(key, measure)
        table = self.tables[LAYERS if series.model else STEPS]
        for step in [steps] if isinstance(steps, int) else steps:
            if step in table:
                table[step][series] = value
        return self

    def remove(self, key: str, measure: str) -> HealthyRun:
        """Remove a series."""
        for table in self.tables.values():
            for row in table.values():
                row.pop(self.series(key, measure), None)
        return self

    def write(self, folder: Path) -> Path:
        """Write the run into a new folder, and return it."""
        folder.mkdir(parents=True)
        writer = RunWriter(folder, self.info)
        for table, rows in self.tables.items():
            for step, values in rows.items():
                writer.add_row(table, step, step / 10, values)
        writer.flush()
        assert not writer.failed
        return folder
