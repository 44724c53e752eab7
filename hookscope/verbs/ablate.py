"""Knock layers or channels out in turn, and rank them by what that does."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.ablation.result import Ablation
from hookscope.ablation.running import Progress, carry_through, prepare_job
from hookscope.ablation.yardstick import settle
from hookscope.choices import DEFAULT_MODEL, FIGURES, KNOCKOUTS
from hookscope.demands import demand_word
from hookscope.differentiate import settle_loss
from hookscope.execute import without_fast_path
from hookscope.keywords import (
    options_of,
    prepared_for,
    several,
)
from hookscope.provenance import describe_run


def ablate(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    by: str = "zero",
    channels: bool = False,
    rank: str | None = None,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Knock out every chosen layer in turn, and rank them by how far that moves the output.

    A knock-out is an edit of a layer's output, in all of its calls; the model is run anew for each,
    from the same seed. Keywords that ``grads`` has too mean the same here.

    Args:
        by: ``zero``; ``mean``, each channel's mean over the batch and all positions; or ``noise``,
            standard normal noise times the output's standard deviation, added to it.
        channels: knock out every channel of every layer on its own.
        rank: what to sort by, the largest change first: ``score``, the mean over the batch of the
            target's logit; ``loss``; or ``output``, the norm of the difference of the outputs over
            that of the clean one. None: ``score`` where there is one, else ``output``.
        loss: as for ``grads``; None for ``ce`` where the output is one of class scores.
        target: as for ``grads``; ``argmax`` is settled by the run with nothing knocked out.
        layers: layer patterns. None given, and no types or depth: all modules without children.
        file: a JSON file that the result goes to every few seconds and at the end. One that holds
            a part of the very same ablation is gone on from.
        progress: called with the number of knock-outs made and that of all.

    Raises:
        RequestError: ``by`` or ``rank`` is no word of these.
        LossError: the loss or its target does not fit the output, or the figure to rank by is not
            defined for it.
        ForwardError: the model raised with nothing knocked out.
        StoreError: the file cannot be written.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Flatten())
        >>> found = hookscope.ablate(net, input=torch.ones(2, 4), rank="output")
        >>> [(knockout.layer, knockout.output) for knockout in found.knockouts]
        [('0', 1.0), ('1', 1.0), ('2', 1.0)]
    """
    given = {name: value for name, value in locals().items() if name not in ("file", "progress")}
    options = options_of(given, ablate)
    demand_word("by", by, KNOCKOUTS)
    demand_word("rank", rank or FIGURES[0], FIGURES)
    measure = settle_loss(loss, target, reduction, raw)
    everything = not (several(layers) or several(types) or depth is not None)
    prepared = prepared_for("ablate", given | {"leaves": leaves or everything})
    choices: Any = {"loss": loss, "target": target, "reduction": reduction, "raw": raw}
    yardstick = functools.partial(settle, prepared, **choices, rank=rank, measure=measure)
    # Inside the fast path of transformers there are no layers to knock out.
    with torch.no_grad(), without_fast_path():
        metadata = describe_run("ablate", prepared, options)
        job, result = prepare_job(prepared, by, channels, rank, yardstick, metadata)
        return carry_through(job, result, file, progress)
