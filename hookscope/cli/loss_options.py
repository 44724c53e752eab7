"""The options that choose a loss."""

from __future__ import annotations

from hookscope.cli.declared import options_of
from hookscope.specs.request import LossRequest

_NAMES = ("loss", "target", "reduction", "raw")
loss = options_of(LossRequest, *_NAMES)
loss_of_any_model = options_of(
    LossRequest, *_NAMES, loss={"shown_default": "a random direction; ce with --target"}
)
