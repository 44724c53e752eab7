"""The unit of a layer with the highest activation, and the part of the image that it depends on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.files.words import plural, shape_text
from hookscope.hooks.layers import select
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.receptive.dependency_tracker import DependencyTracker
from hookscope.model_analysis.receptive.field_run import check_operators_are_seen, following
from hookscope.model_analysis.receptive.unit_fields import field_of_unit, on_input
from hookscope.results.metadata import CamUnit
from hookscope.specs.tensor_key import OUTPUT


def strongest_units(inputs: CamInput, layer: str) -> list[CamUnit]:
    """Return the unit of a layer with the highest activation for each image, and its field."""
    prepared = inputs.prepared
    check_operators_are_seen(prepared.loaded)
    layers = select(prepared.module, [layer], spec=prepared.loaded.spec)
    if len(layers) != 1:
        raise RequestError(
            f"{layer!r} matches {len(layers)} layers.", "--receptive takes one: give its full name."
        )
    tracker = DependencyTracker()
    sink = _UnitSink(tracker, inputs.size, len(inputs.image))
    with following(tracker), Recorder(prepared.module, layers, [OUTPUT], sink=sink):
        tracker.follow(inputs.image)
        inputs.run(inputs.image)
    if sink.mixed is not None:
        raise RequestError(
            f"The output of {layer} is {sink.mixed}: its first dimension is not that of the input,"
            f" which has {plural(sink.batch, inputs.kind)}.",
            "Choose another layer for --receptive.",
        )
    if not sink.units:
        raise RequestError(
            f"The output of {layer} does not depend on the {inputs.kind}, or it did not run.",
            "Choose another layer: 'hookscope tree MODEL --receptive' lists those with a field.",
        )
    return sink.units


class _UnitSink(SinkBase):
    """Keeps the strongest units of the first output that depends on the images.

    ``mixed`` is the shape of an output that has no row for each image.
    """

    def __init__(self, tracker: DependencyTracker, sides: tuple[int, ...], batch: int) -> None:
        super().__init__()
        self.units: list[CamUnit] = []
        self.batch = batch
        self.mixed: str | None = None
        self._tracker, self._sides = tracker, sides

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Find the highest activation of each image, among the units that depend on the image."""
        bounds = self._tracker.bounds(tensor)
        if bounds is None or self.units:
            return
        inside = on_input(bounds, self._sides)
        if not inside.any():
            return
        if not tensor.ndim or len(tensor) != self.batch:
            self.mixed = shape_text(tensor.shape)
            return
        seen = torch.where(inside, tensor.detach().float().cpu(), -torch.inf).numpy()
        for n, values in enumerate(seen):
            unit = [int(index) for index in np.unravel_index(int(values.argmax()), values.shape)]
            self.units.append(
                {
                    "layer": key.layer.name,
                    "unit": unit,
                    "activation": float(values[tuple(unit)]),
                    "field": field_of_unit(bounds, (n, *unit), self._sides),
                }
            )

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> Tensor | None:
        """Receive nothing: no gradient is recorded."""
        return None
