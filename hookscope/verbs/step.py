"""One step of an optimizer, and what it does to every parameter."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.captures import Capture
from hookscope.choices import DEFAULT_MODEL
from hookscope.differentiate import settle_loss
from hookscope.edits.effect import describe_effect
from hookscope.execute import (
    announce_size,
    demand_all_ran,
    demand_unchanged,
)
from hookscope.keywords import (
    Telling,
    options_of,
    prepared_for,
)
from hookscope.kinds import PARAM_GRAD
from hookscope.own_hooks.binding import Hooks
from hookscope.runs import run_step
from hookscope.stepping import settle_rule


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

    Forward, the loss backward, and ``torch.optim``'s own step, from a fresh state: no momentum has
    been gathered before. Every parameter that requires grad is stepped; recorded are those of the
    chosen layers, ``fc/weight.grad`` and ``fc/weight.update``, the value after the step minus the
    one before. A live model is put back as it was, parameters, buffers and gradients. Keywords that
    ``grads`` has too mean the same here.

    Args:
        optimizer: ``sgd``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``adadelta``, ``adamax``,
            ``adafactor``, ``asgd``, ``nadam``, ``radam`` or ``rprop``.
        lr: the learning rate; None for the optimizer's own.
        opt_args: further arguments of its class in ``torch.optim``, such as ``momentum``.
        compare: make the step once more without edits and hooks, and tell how far every recorded
            gradient and update moved.
        hook_kind: besides those of ``grads``: ``step_pre`` and ``step_post``, called with
            ``(optimizer, args, kwargs)`` before and after the step. What they do to gradients and
            parameters counts: the update is the value after all of it minus that before.

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
    given = locals()
    options = options_of(given, step)
    rule = settle_rule(optimizer, lr, opt_args)
    measure = settle_loss(loss, target, reduction, raw)
    prepared = prepared_for("step", given)
    announce_size(prepared, {PARAM_GRAD}, max_bytes)
    again = functools.partial(run_step, measure=measure, rule=rule)
    with Telling("step", prepared, options) as told, torch.enable_grad():
        run = again(prepared, max_bytes=max_bytes)
        made = told.capture = run.capture
        if prepared.plan.hands_on_clones:
            demand_unchanged(prepared, made.output, excuse_noise=True)
        made.metadata = told.origin() | run.told
        made.metadata |= describe_effect(prepared, run, again, compare)
    if strict:
        demand_all_ran(made)
    return made
