"""Make one step of an optimizer, and record the update of every parameter."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.execution.edit_effect import describe_effect
from hookscope.execution.objective import resolve_loss
from hookscope.execution.optimizer_step import resolve_optimizer
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import Provenance
from hookscope.execution.recorded_run import run_step
from hookscope.execution.size_estimate import check_recording_size
from hookscope.execution.verification import check_all_ran, verify_output_unchanged
from hookscope.hooks.capture import Capture
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import StepOptions
from hookscope.specs.intervention_spec import Hooks, Interventions
from hookscope.specs.record_kinds import PARAM_GRAD
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode


def step(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    optimizer: str = "sgd",
    lr: float | None = None,
    opt_args: Mapping[str, Any] | None = None,
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
    train: bool = False,
    edits: str | Iterable[str] = (),
    grad_edits: str | Iterable[str] = (),
    compare: bool = False,
    hooks: Hooks = (),
    hook_args: Mapping[str, Any] | None = None,
    hook_kind: str | Iterable[str] = (),
    strict: bool = False,
    max_bytes: int | None = None,
) -> Capture:
    """Make one step of an optimizer; return each parameter's gradient and its update.

    Runs the model forward, the loss backward, and a step of the ``torch.optim`` optimizer from its
    initial state, without momentum. Every parameter that requires grad is updated. Recorded are
    those of the selected layers: ``fc/weight.grad``, and ``fc/weight.update``, the value after the
    step minus the one before. The parameters, buffers and gradients of a live model are restored.
    Keywords that ``grads`` also has mean the same here.

    Args:
        optimizer: ``sgd``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``adadelta``, ``adamax``,
            ``adafactor``, ``asgd``, ``nadam``, ``radam`` or ``rprop``.
        lr: the learning rate; None for the optimizer's default.
        opt_args: further arguments of its class in ``torch.optim``, such as ``momentum``.
        compare: make the step once more without edits and hooks, and report the change of every
            recorded gradient and update.
        hook_kind: besides those of ``grads``: ``step_pre`` and ``step_post``, called with
            ``(optimizer, args, kwargs)`` before and after the step. The update includes their
            changes to gradients and parameters.

    Raises:
        RequestError: there is no such optimizer or argument, or no parameter requires grad.
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Linear(4, 1)
        >>> made = hookscope.step(net, input=torch.ones(2, 4), loss="sum", lr=0.5)
        >>> made["./weight.grad"]
        tensor([[2., 2., 2., 2.]])
        >>> [record.key for record in made.records if record.kind == "param.update"]
        ['./bias.update', './weight.update']
    """
    loss_request = LossRequest(loss, target, reduction, raw)
    request = Request(
        "step",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, train=train),
        Interventions(edits, grad_edits, compare, hooks, hook_args, hook_kind),
        loss_request,
    )
    options = StepOptions(optimizer, lr, opt_args, strict, max_bytes)
    optimizer_spec = resolve_optimizer(optimizer, lr, opt_args)
    objective = resolve_loss(loss_request)
    prepared = prepare(request)
    check_recording_size(prepared, {PARAM_GRAD}, max_bytes)
    again = functools.partial(run_step, objective=objective, optimizer=optimizer_spec)
    with (
        Provenance("step", prepared, request.chosen(options)) as provenance,
        grad_mode(True),
    ):
        run = again(prepared, max_bytes=max_bytes)
        capture = provenance.capture = run.capture
        if prepared.interventions.passes_clones:
            verify_output_unchanged(
                prepared, capture.output, excuse_noise=True, recorded=len(capture)
            )
        capture.metadata = provenance.metadata() | run.metadata
        capture.metadata |= describe_effect(prepared, run, again, compare)
    if strict:
        check_all_ran(capture)
    return capture
