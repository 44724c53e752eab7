"""One forward or backward pass of a prepared model; errors name the module that failed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import ForwardError, HookscopeError, LossError
from hookscope.execution.failures.frames import describe_failure
from hookscope.execution.prepare import Prepared
from hookscope.files.signatures import signature_of
from hookscope.files.words import shape_text
from hookscope.hooks.capture import Capture
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import Layer, module_running, submodule, tensors_in_traceback
from hookscope.inputs.input_checks import explain_layer_error
from hookscope.specs.patterns import ROOT
from hookscope.tensors.nested import as_call, detach_clone, walk


def forward(
    prepared: Prepared,
    capture: Capture | None = None,
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Any:
    """Call the model once, with the arguments in ``call`` or, by default, with fresh ones."""
    args, kwargs = call or prepared.fresh_call()
    try:
        return prepared.run(args, kwargs)
    except HookscopeError:
        raise
    except (Exception, SystemExit) as error:  # a model that exits has failed too
        raise forward_error(prepared.module, prepared.value, error, capture) from error


def backward(prepared: Prepared, loss: Tensor, capture: Capture) -> None:
    """Run a loss backward."""
    if not loss.requires_grad:
        is_frozen = not any(one.requires_grad for one in prepared.module.parameters())
        parameters = "every parameter is frozen" if is_frozen else "no parameter reaches it"
        raise LossError(
            f"Nothing that the loss depends on requires grad: {parameters}, and the"
            " model's input is not of a floating-point type or does not reach its output.",
            "Unfreeze a parameter, or choose another --loss.",
        )
    try:
        loss.backward()
    except HookscopeError:
        raise
    except (Exception, SystemExit) as error:
        module, value = prepared.module, prepared.value
        raise forward_error(module, value, error, capture, during="backward") from error


def _how_to_set(module: nn.Module, layer: str, error: BaseException) -> str:
    """How the input is set; by name if the model needs more arguments than it got."""
    if layer != ROOT or "required positional argument" not in str(error):
        return "Set it with --shape or --input."
    given = signature_of(module.forward).parameters.values()
    names = [p.name for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    words = " ".join(f"--input {name}=SPEC" for name in names)
    return f"Give each argument: {words}; 'hookscope help inputs' lists what SPEC can be."


def forward_error(
    module: nn.Module,
    value: Any,
    error: BaseException,
    capture: Capture | None = None,
    during: str = "forward",
) -> ForwardError:
    """Return the error that names the module that raised, and what had been recorded."""
    layer = module_running(module, error.__traceback__)
    running = submodule(module, layer) or module
    kind = type(running).__name__
    done = "Nothing was recorded before it."
    if capture:
        last = next(reversed(capture.records)).key
        count = f"{len(capture)} tensor{'s were' if len(capture) > 1 else ' was'}"
        done = f"{count} recorded before it, last {last}."
    cause = f"{type(error).__name__}: {error}".strip().rstrip(".!:")
    tensors = [tensor for _, tensor in walk(as_call(value))]
    shapes = ", ".join(shape_text(t.shape) for t in tensors)
    signatures = {(t.shape, t.dtype) for t in tensors}
    reached = [
        t
        for t in tensors_in_traceback(running, error.__traceback__)
        if (t.shape, t.dtype) in signatures
    ]
    where = "the model itself" if layer == ROOT else f"layer {layer}"
    failed = ForwardError(
        f"The {during} pass failed in {where} ({kind}): {cause}.",
        layer,
        len(capture or ()),
        f"{done} The input was {shapes or 'no tensor'}. {_how_to_set(running, layer, error)}",
    )
    failed.exception, failed.with_grad = error, torch.is_grad_enabled()
    if during == "forward":
        failed.failure = describe_failure(
            Layer(layer, running), error, capture, explain_layer_error(running, reached)
        )
    return failed


def run_without_hooks(prepared: Prepared) -> Any:
    """Run the model from the same seed with its interventions only; restore its state."""
    interventions, module, seed = prepared.interventions, prepared.module, prepared.seed
    with prepared.preserved(), forward_interventions(interventions, module, seed):
        return detach_clone(forward(prepared))  # it may hold buffers, which are restored
