"""One small model with most of what makes a simple hook record something wrong, or nothing at all.

- ``act`` works in place and is called twice: what ``norm`` returned is gone a moment later.
- ``block`` ends with ``+=`` on what ``norm`` returned: in place, and by no module.
- ``head`` is reachable as ``tied`` too: one module, two names.
- ``split`` returns a tuple within a tuple, ``report`` a dict with an integer tensor and a None.
- ``gate`` is given its second argument by keyword.
- ``norm.num_batches_tracked`` and ``seen`` are integer buffers, which no gradient can reach.
- ``extra`` is called in training only, ``branches`` is a container that is never called.

Try, in this folder:

    hookscope tree tricky.py:Tricky
    hookscope capture tricky.py:Tricky --what input,output --verify
    hookscope grads tricky.py:Tricky --loss ce --target 3 --what output,input,param
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Split(nn.Module):
    """The two halves of the channels, the second one nested beside nothing: (a, (b, None))."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, None]]:
        """Return Bx4xHxW twice, out of Bx8xHxW."""
        first, second = x.chunk(2, dim=1)
        return first, (second, None)


class Gate(nn.Module):
    """x times a gate from 0 to 1; the gate comes by keyword."""

    def forward(self, x: Tensor, *, gate: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x * sigmoid(gate), plus ``bias`` if there is one."""
        gated = x * gate.sigmoid()
        return gated if bias is None else gated + bias


class Report(nn.Module):
    """What the head needs and some that it does not, as a dict."""

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        """Return ``mean`` (BxC), the channel where it is ``largest`` (B, int64), and a None."""
        mean = x.mean((2, 3))
        return {"mean": mean, "largest": mean.argmax(1), "mask": None}


class Tricky(nn.Module):
    """Bx3xHxW in; out comes a dict of ``logits`` (Bx10) and ``largest`` (B, int64)."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.split = Split()
        self.gate = Gate()
        self.report = Report()
        self.extra = nn.Dropout(0.5)
        self.branches = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 10)
        self.tied = self.head
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def block(self, x: Tensor) -> Tensor:
        """Return relu(norm(x) + x), adding in place."""
        y = self.norm(x)
        y += x
        out: Tensor = self.act(y)
        return out

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the logits, and the channel that was largest on average."""
        x = self.block(self.act(self.stem(images)))
        first, (second, _) = self.split(x)
        report = self.report(self.gate(first, gate=second))
        features = self.branches[0](report["mean"])
        if self.training:
            self.seen += len(images)
            features = self.extra(features)
        return {"logits": self.tied(features), "largest": report["largest"]}


def example_input() -> Tensor:
    """Return one image of noise: 1x3x8x8 float32, the same every time."""
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
