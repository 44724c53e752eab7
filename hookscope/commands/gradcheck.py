"""Compare the gradients of a backward pass with numerical gradients."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.runner import run_analysis
from hookscope.errors import FAILED
from hookscope.files.signal_safety import signal_safe
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import GradcheckOptions
from hookscope.specs.public import Only, public
from hookscope.specs.request import InputRequest, ModelRequest, Request, chosen_options
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hookscope.results.grad_check import GradCheck


@public
def gradcheck(
    input: Annotated[InputRequest, Only("input")],
    options: GradcheckOptions,
    loading: ModelRequest,
    run: Annotated[RunOptions, Only("seed")],
    request: Request,
    model: str
    | os.PathLike[str]
    | nn.Module
    | torch.export.ExportedProgram
    | type[torch.autograd.Function] = DEFAULT_MODEL,
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
    import torch

    from hookscope.execution.failures.failure_explanation import explain_forward_errors
    from hookscope.execution.isolation import preserve_model_state
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.jacobian_check import compare_jacobians, describe_fixed_parameters
    from hookscope.results.grad_check import GradCheck
    from hookscope.sources.python_file import function_module, is_autograd_function

    module: Any = function_module(model) if is_autograd_function(model) else model
    tolerances = (options.eps, options.atol, options.rtol)
    shape = options.shape
    shapes: list[Any] = [shape] if shape and isinstance(shape[0], int) else list(shape)
    if len(shapes) > 1 and input.input is None:
        source = torch.Generator().manual_seed(run.seed)
        input = InputRequest(tuple(torch.randn(*each, generator=source) for each in shapes))
    elif shapes:
        input = replace(input, shape=shapes[0])
    with signal_safe(torch.inference_mode(False)):
        request = replace(
            request,
            model=replace(loading, model=module),
            input=input,
            run=replace(run, dtype="float64", device="cpu"),
        )
        prepared = prepare(request)
        guard = preserve_model_state(prepared.module, train=False, seed=run.seed)
        with explain_forward_errors(prepared), guard:
            comparisons = tuple(compare_jacobians(prepared, *tolerances))
    chosen = {
        **chosen_options(request.model),
        **chosen_options(run),
        **chosen_options(options),
    }
    metadata = describe_run("gradcheck", prepared, chosen)
    return GradCheck(comparisons, *tolerances, metadata, describe_fixed_parameters(prepared))


EXAMPLES = (
    Example(
        "hookscope gradcheck sample_models/doubling.py:DoubleFunction --shape 2x3",
        "A custom autograd function.",
    ),
    Example(
        "hookscope gradcheck sample_models/wrong_backward.py:ScaleFunction --shape 1x3 --shape 3",
        "Two inputs. The error of this function shows only with --shape 2x3 --shape 3.",
    ),
    Example("hookscope gradcheck sample_models/digits_scripted.pt", "A whole model from a file."),
)


@command(
    "gradcheck",
    options.model,
    options.input,
    options_of(GradcheckOptions, "shape"),
    options.weights,
    options.seed,
    options_of(GradcheckOptions, "eps", "atol", "rtol"),
    table_options,
    views="grad_check",
    examples=EXAMPLES,
    main="shape input model-arg atol rtol eps",
    topics="model-specs inputs weights",
)
def gradcheck_command(ctx: click.Context, **values: Any) -> None:
    """Compare backward with numerical gradients.

    MODEL is a module or a custom torch.autograd.Function, FILE.py:NAME. It runs in float64 and eval
    mode. Central differences with step --eps at each entry of each input are compared with the
    gradients that backward returns. Exit status: 0 if they match, 1 if not.
    """
    if not run_analysis(ctx, gradcheck, values).ok:
        ctx.exit(FAILED)
