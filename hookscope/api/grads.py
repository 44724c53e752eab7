"""Run a model forward and a loss backward, and record the gradients."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.execution.edit_effect import describe_effect
from hookscope.execution.objective import resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import Provenance
from hookscope.execution.recorded_run import run_backward
from hookscope.execution.size_estimate import check_recording_size
from hookscope.execution.verification import check_all_ran, verify_output_unchanged
from hookscope.hooks.capture import Capture
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import GradsOptions
from hookscope.specs.intervention_spec import Hooks, Interventions
from hookscope.specs.record_kinds import OP_GRAD
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode


def grads(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    penalty: str | None = None,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] = ("output", "param"),
    ops: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
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
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: Mapping[str, int] | None = None,
    train: bool = False,
    edits: str | Iterable[str] = (),
    grad_edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    verify: bool = False,
    strict: bool = False,
    max_bytes: int | None = None,
) -> Capture:
    """Run a model forward and a loss backward; return the gradients at the selected layers.

    The gradient at the model's own input is always recorded. The model runs once more without
    hooks, and its output must be bit-identical; a non-deterministic model gets a warning, or with
    ``verify`` an error. Keywords that ``capture`` also has mean the same here.

    Args:
        model: the spec of a model, or a module.
        loss: ``kl``, ``ce``, ``nll``, ``mse``, ``l1``, ``smooth_l1``, ``bce``, ``logit``, ``sum``
            or ``norm``; or a custom function, as ``FILE.py:FUNCTION`` or the function itself, that
            takes the output, the output and the target, or parameters named ``output``, ``target``
            and ``input``, and returns a tensor with one number. None: ``ce``, and ``sum`` with
            ``penalty``.
        target: a class index, several for a batch, a label, ``argmax`` (the class that the model
            predicts), ``uniform``, or a tensor file.
        reduction: ``mean``, ``sum`` or ``batchmean``; None for the default of the loss.
        raw: apply the loss to the model's output without softmax or sigmoid.
        penalty: ``gp`` for the gradients of the gradient penalty (Gulrajani et al., 2017) instead
            of those of the loss. The penalty is the mean over the batch of (norm - 1)^2, where norm
            is that of the gradient of the score at one sample's input, and the score is the loss
            summed over the batch. That first gradient is recorded as ``./input.0.score.grad``.
        what: any of ``output`` (gradient at each module's output), ``input`` (the part that flows
            back through that module to its input) and ``param``.
        ops: also record the gradients at the results of functions that the selected layers call
            between modules, as ``<module>[:call]/add.grad``.
        grad_edits: edits of the gradient at modules' outputs, each ``GLOB=OP:ARG``, which also
            change all gradients further back. ``<module>/output.grad`` is the edited gradient,
            ``<module>/output.grad.unedited`` the one before.
        compare: run once more without edits, and report the change of every recorded gradient.
        hook_kind: besides ``forward`` and ``forward_pre``: ``backward``, called with
            ``(module, grad_input, grad_output)``, whose result replaces the gradient at the
            module's inputs; ``backward_pre``, ``(module, grad_output)``, the one at its outputs;
            ``tensor``, ``(grad)``, the same for one output tensor at a time.

    Raises:
        HookError: a hook raised; its ``capture`` has what was recorded before.
        LossError: the loss or its target does not fit the output.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> found = hookscope.grads("resnet18", loss="kl", target=3, layers=["fc"])
        >>> [record.key for record in found.records]
        ['fc/output.grad', 'fc/bias.grad', 'fc/weight.grad', './input.0.grad']
    """
    loss_request = LossRequest(loss, target, reduction, raw, penalty)
    request = Request(
        "grads",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, device_map, max_memory, train),
        Interventions(edits, grad_edits, compare, hooks, hook_args, hook_kind),
        loss_request,
    )
    options = GradsOptions(what, ops, verify, strict, max_bytes)
    kinds = options.kinds | ({OP_GRAD} if ops else set())
    objective = resolve_loss(loss_request)
    prepared = prepare(request)
    check_recording_size(prepared, kinds, max_bytes)
    again = functools.partial(run_backward, kinds=kinds, objective=objective)
    with (
        Provenance("grads", prepared, request.chosen(options)) as provenance,
        grad_mode(True),
    ):
        run = again(prepared, max_bytes=max_bytes)
        capture = provenance.capture = run.capture
        verify_output_unchanged(
            prepared, capture.output, excuse_noise=not verify, recorded=len(capture)
        )
        capture.metadata = provenance.metadata() | run.metadata
        capture.metadata |= describe_effect(prepared, run, again, compare)
    if verify:
        capture.metadata["verified"] = True
    if strict:
        check_all_ran(capture)
    return capture
