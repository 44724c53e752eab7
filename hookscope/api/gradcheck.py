"""Compare the gradients of a backward pass with numerical gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.signal_safety import signal_safe
from hookscope.model_analysis.jacobian_check import compare_jacobians, describe_fixed_parameters
from hookscope.results.grad_check import GradCheck
from hookscope.sources.python_file import function_module, is_autograd_function
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import GradcheckOptions
from hookscope.specs.request import InputRequest, ModelRequest, Request, chosen_options
from hookscope.specs.run_options import RunOptions


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
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> GradCheck:
    """Compare the gradients of a backward pass with numerical gradients.

    The model, or a copy of a live one, runs in float64 and eval mode. Every entry of every
    floating-point input is varied by ``eps`` in both directions, and each central difference is
    compared with the derivative of the backward pass. At a kink (0 for a ReLU) the two need not
    agree. Parameters that require grad are varied too, unless they have more than 10,000 entries in
    total; ``unvaried`` then says so.

    Args:
        model: as for ``capture``, or a class derived from ``torch.autograd.Function``, itself or as
            ``FILE.py:NAME``.
        input: as for ``capture``.
        shape: shape of the input, or a list with a shape for each; filled with seeded noise.
        eps: half the width of the central difference.
        atol: derivatives match if they differ by at most ``atol + rtol * |numerical|``. This rule
            and the defaults are those of ``torch.autograd.gradcheck``.
        rtol: the relative part of the tolerance.

    Raises:
        ModelError, InputError, RequestError: a spec, a shape or a tolerance is wrong, or there is
            nothing to check.
        LossError: the model returns no floating-point tensor.
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
            ModelRequest(
                module,
                weights,
                rename,
                partial,
                model_args,
                method,
                attn,
                trust,
                onnx_optimize,
                adapter,
            ),
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
