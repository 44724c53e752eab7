"""Hold a backward against numerical gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.agreement import GradCheck
from hookscope.choices import DEFAULT_MODEL
from hookscope.execute import (
    untouched,
)
from hookscope.keywords import LOADING, options_of
from hookscope.numerical import compare as compare_numerically
from hookscope.numerical import demand_tolerances, unvaried
from hookscope.prepare import prepare
from hookscope.provenance import describe_run
from hookscope.sources.autograd_function import applied, is_function


def gradcheck(
    model: str
    | os.PathLike[str]
    | nn.Module
    | torch.export.ExportedProgram
    | type[torch.autograd.Function] = DEFAULT_MODEL,
    *,
    input: Any = None,
    shape: Sequence[Sequence[int]] | Sequence[int] = (),
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    seed: int = 0,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> GradCheck:
    """Compare a backward with numerical gradients, and say where they part.

    The model, or a copy of a live one, runs in float64 and eval mode. Every entry of every floating
    input is moved by ``eps`` to either side; each derivative of each output that the central
    difference gives is held against the one of a backward pass. Inputs at a kink (0 for a ReLU)
    have no derivative to agree on. Parameters that require grad are varied too, unless they are
    more than 10,000 numbers together: ``unvaried`` tells.

    Args:
        model: as for ``capture``, or a class derived from ``torch.autograd.Function``, itself or as
            ``FILE.py:NAME``.
        input: as for ``capture``.
        shape: of the one input, or a list of a shape for each; they are filled with seeded noise.
        eps: half the width of the central difference.
        atol: differences up to ``atol + rtol * |numerical|`` are none, as for
            ``torch.autograd.gradcheck``, whose defaults these are.
        rtol: the relative part of it.

    Raises:
        ModelError, InputError, RequestError: a word, a shape or a tolerance is wrong, or there is
            nothing to check.
        ForwardError: the model raised, forward or backward.

    Example:
        >>> import torch, hookscope
        >>> hookscope.gradcheck(torch.nn.Tanh(), shape=(2, 3)).ok
        True
    """
    given = locals()
    options = options_of(given, gradcheck)
    demand_tolerances(eps, atol, rtol)
    checked: Any = applied(model) if is_function(model) else model
    shapes: list[Any] = [shape] if shape and isinstance(shape[0], int) else list(shape)
    if len(shapes) > 1 and input is None:
        source = torch.Generator().manual_seed(seed)
        input = tuple(torch.randn(*each, generator=source) for each in shapes)
        shapes = []
    with torch.inference_mode(False):
        prepared = prepare(
            checked,
            input,
            selection={},
            recipe={"shape": shapes[0] if shapes else None},
            loading={name: given[name] for name in LOADING},
            seed=seed,
            dtype="float64",
            device="cpu",
            train=False,
        )
        with untouched(prepared.module, train=False, seed=seed):
            found = tuple(compare_numerically(prepared, eps, atol, rtol))
    run = describe_run("gradcheck", prepared, options)
    return GradCheck(found, eps, atol, rtol, run, unvaried(prepared))
