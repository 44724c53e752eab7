"""What is measured in a training run: one number per measured step, under a name."""

from __future__ import annotations

from typing import NamedTuple

# The two tables of a run. Rows of STEPS are made for every step, those of LAYERS for sampled ones.
STEPS, LAYERS = "steps", "layers"
TABLES = (STEPS, LAYERS)


class Series(NamedTuple):
    """One measured quantity of one thing."""

    model: str
    key: str
    measure: str

    @property
    def module(self) -> str:
        """Dotted name of the module of a tensor; ``.`` for the model itself; else empty.

        >>> Series("ResNet", "layer1.0.conv1/weight.grad", "norm").module
        'layer1.0.conv1'
        """
        module, slash, _ = self.key.rpartition("/")
        return module if slash else ""

    @property
    def what(self) -> str:
        """The part of the key after the module: ``output``, ``weight.grad``, ``loss``.

        >>> Series("ResNet", "conv1/weight.grad", "norm").what
        'weight.grad'
        """
        return self.key.rpartition("/")[2]


LOSS = Series("", "loss", "value")  # the mean of those that were differentiated in a step
LOSS_SCALE = Series("", "loss_scale", "value")
SKIPPED = LOSS_SCALE._replace(measure="skipped")

# Each measure, its meaning, and the unit where there is one.
MEASURES = {
    # of tensors
    "rms": "root of the mean of squares",
    "max": "largest magnitude",
    "zeros": "share of entries that are zero",
    "dead": "share of units that are zero for the whole batch",
    "nonfinite": "number of entries that are NaN or infinite",
    "norm": "Euclidean norm",
    "ratio": "norm of the update over the norm of the weight before it",
    "adam_rms": "root of the mean of g^2 / max(v, eps^2) (StableAdamW, arXiv 2304.13013)",
    # of a step
    "value": "the value itself",
    "lr": "learning rate",
    "skipped": "1 if the gradient scaler skipped the optimizer's step, else 0",
    "clipped": "share of the gradient norm that clipping removed",
    "seconds": "duration in seconds",
    "samples": "size of the first dimension of the first tensor that a model got, over its calls",
    "tokens": "entries of these tensors, if they have integers and two dimensions",
}
