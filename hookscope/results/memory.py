"""The memory of a training step or of inference, as data."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from hookscope.results.result import Result

FORWARD, BACKWARD, STEP = "forward", "backward", "step"
LOSS = "(loss)"  # in the place of a layer


@dataclass(frozen=True)
class MemoryParts:
    """Bytes by what they are for.

    Attributes:
        parameters: the parameters of the model.
        buffers: its buffers.
        inputs: the arguments of the model, and the target of the loss.
        gradients: the gradients of parameters, and of an input that requires grad.
        optimizer: the state of the optimizer.
        saved: what the forward pass keeps for the backward pass.
        temporary: everything else, such as gradients of activations, and activations that are
            computed again.
    """

    parameters: int = 0
    buffers: int = 0
    inputs: int = 0
    gradients: int = 0
    optimizer: int = 0
    saved: int = 0
    temporary: int = 0

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(astuple(self))

    def __add__(self, other: MemoryParts) -> MemoryParts:
        return MemoryParts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


PARTS = tuple(part.name for part in fields(MemoryParts))


@dataclass(frozen=True)
class PeakMoment:
    """When the peak is reached.

    Attributes:
        phase: ``forward``, ``backward``, or ``step`` of the optimizer.
        layer: the layer that allocates, or whose gradient is computed; empty outside the layers.
        operator: the operator that allocates, such as ``aten::convolution_backward``.
    """

    phase: str
    layer: str
    operator: str


@dataclass(frozen=True)
class LayerMemory:
    """What a layer holds at the peak: what it allocated itself, without the layers inside it."""

    name: str
    type: str
    parts: MemoryParts


@dataclass(frozen=True)
class BatchLimit:
    """The largest batch whose peak is within a limit.

    Attributes:
        limit: the limit in bytes.
        batch: the largest batch; 0 if no batch fits.
        peak: the peak in bytes with that batch; 0 if there is none.
        next_peak: the peak in bytes with the next batch that runs.
        next_batch: that batch: one sample more, or the smallest that the model runs with.
    """

    limit: int
    batch: int
    peak: int
    next_peak: int
    next_batch: int


@dataclass(frozen=True)
class CheckpointPlan:
    """The layers whose activations are computed again, so that the batch fits the limit.

    Attributes:
        layers: the layers to checkpoint; empty if checkpoints do not suffice.
        peak: the peak in bytes with these checkpoints, or with all that were tried.
        tried: the number of layers that were considered.
        flops: the FLOPs that are computed again.
    """

    layers: tuple[str, ...]
    peak: int
    tried: int
    flops: int


@dataclass(frozen=True)
class Memory(Result):
    """The peak of the memory of one training step, or of inference.

    Attributes:
        batch: the number of samples; None if the input has no dimension of samples.
        peak: the most bytes that are allocated at one time.
        moment: when that is.
        parts: the bytes at that time by what they are for.
        layers: the same by layer. What belongs to no layer, such as the input, is in the first row.
        flops: of the forward and backward passes: matrix products, convolutions and attention.
        metadata: the model, the inputs, options and versions.
        limit: the largest batch within a limit, if one was given.
        checkpoints: the layers to checkpoint, if the batch is beyond the limit.
    """

    view = "memory"

    batch: int | None
    peak: int
    moment: PeakMoment
    parts: MemoryParts
    layers: tuple[LayerMemory, ...]
    flops: int
    metadata: dict[str, Any]
    limit: BatchLimit | None = None
    checkpoints: CheckpointPlan | None = None

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        return f"<Memory of {model}: peak {self.peak:,} bytes in {self.moment.phase}>"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.metadata,
            "batch": self.batch,
            "peak": self.peak,
            "moment": asdict(self.moment),
            "parts": asdict(self.parts),
            "flops": self.flops,
            "layers": [
                {"name": layer.name, "type": layer.type, **asdict(layer.parts)}
                for layer in self.layers
            ],
            "limit": self.limit and asdict(self.limit),
            "checkpoints": self.checkpoints and asdict(self.checkpoints),
        }
