"""Compare a backward with numerical gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.analysis.jacobian_check import compare_jacobians, describe_fixed_parameters
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.results.grad_check import GradCheck
from hookscope.sources.python_file import function_module, is_autograd_function
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import GradcheckOptions
from hookscope.specs.request import InputRequest, ModelRequest, Request, chosen_options
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.interrupts import signal_safe


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
    """Compare a backward with numerical gradients, and report where they differ.

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
    options = GradcheckOptions(shape, eps, atol, rtol)
    module: Any = function_module(model) if is_autograd_function(model) else model
    shapes: list[Any] = [shape] if shape and isinstance(shape[0], int) else list(shape)
    if len(shapes) > 1 and input is None:
        source = torch.Generator().manual_seed(seed)
        input = tuple(torch.randn(*each, generator=source) for each in shapes)
        shapes = []
    with signal_safe(torch.inference_mode(False)):
        request = Request(
            "gradcheck",
            ModelRequest(module, weights, rename, partial, model_args, method, attn, trust),
            input=InputRequest(input, shapes[0] if shapes else None),
            run=RunOptions(seed, "float64", "cpu"),
        )
        prepared = prepare(request)
        guard = preserve_model_state(prepared.module, train=False, seed=seed)
        with explain_forward_errors(prepared), guard:
            comparisons = tuple(compare_jacobians(prepared, eps, atol, rtol))
    chosen = {
        **chosen_options(request.model),
        **chosen_options(RunOptions(seed)),
        **chosen_options(options),
    }
    run = describe_run("gradcheck", prepared, chosen)
    return GradCheck(comparisons, eps, atol, rtol, run, describe_fixed_parameters(prepared))
