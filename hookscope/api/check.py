"""Diagnose a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.analysis.health.gradient_findings import gradient_findings, not_finite
from hookscope.analysis.health.parameter_report import inspect_parameters, parameter_findings
from hookscope.analysis.health.run_findings import (
    CheckContext,
    activation_findings,
    dtype_promotion_findings,
    failure_findings,
    nonfinite_findings,
    unexecuted_modules,
    untrained_parameter_findings,
    unused_layer_findings,
)
from hookscope.analysis.health.run_observation import (
    RunObservation,
    run_and_observe,
    runs_in_training,
    trace_gradients,
)
from hookscope.execution.losses.loss import projection_loss
from hookscope.execution.objective import Objective, resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.results.health import Finding, Health
from hookscope.results.records import Record
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CheckOptions
from hookscope.specs.health_checks import (
    CHECKS,
    DEFAULT_THRESHOLDS,
    EXPLODING,
    INF,
    LEVELS,
    RUN,
    UNCALLED,
    VANISHING,
)
from hookscope.specs.request import InputRequest, LossRequest, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

UNTRAINED = ("random", "as built", "as given")


def check(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
    dead: float = DEFAULT_THRESHOLDS.dead,
    saturated: float = DEFAULT_THRESHOLDS.saturated,
    margin: float = DEFAULT_THRESHOLDS.margin,
    vanishing: float = DEFAULT_THRESHOLDS.vanishing,
    exploding: float = DEFAULT_THRESHOLDS.exploding,
    floor: float = DEFAULT_THRESHOLDS.floor,
    ceiling: float = DEFAULT_THRESHOLDS.ceiling,
    forward_only: bool = False,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
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
) -> Health:
    """Run a model forward and a loss backward once, and diagnose it.

    Tensors are measured during the run; no activation or gradient is stored. Keywords that
    ``grads`` also has mean the same here.

    Args:
        only: names of the checks to run, as a list or separated by commas; None for all.
        skip: names of checks to skip.
        dead: share of dead units (always zero) from which a ReLU-like layer is reported. The
            default, half, is that of the rule ``DeadRelu`` of Amazon SageMaker Debugger, see
            ``hookscope.specs.health_checks.Thresholds``. ``units`` of a finding has their indices.
        saturated: share of entries at a bound from which an activation is reported.
        margin: distance from a bound that counts as at it, as a share of the width between bounds.
        vanishing: a gradient vanishes if its norm is below this share of the norm nearest to the
            loss; for parameters, 1/100 of this.
        exploding: a gradient explodes if its norm is above this multiple of the norm nearest to the
            loss; for parameters, 100 times this.
        floor: norm below which a gradient vanishes in any case.
        ceiling: entry above which a gradient explodes in any case.
        forward_only: run no backward pass.
        loss: as for ``grads``. None, without a target: the output along a random direction, which
            is defined for any model.

    Raises:
        LossError: the loss or its target does not fit the output.
        RequestError: there is no such check, or a threshold is out of range.
        CheckFailed: hooks change the output of the model.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> _ = torch.nn.init.constant_(net[0].bias, -100)
        >>> [(f.check, f.layer) for f in hookscope.check(net, input=torch.ones(2, 4)).findings]
        [('dead', '1'), ('vanishing', '0')]
    """
    options = CheckOptions(
        only,
        skip,
        dead=dead,
        saturated=saturated,
        margin=margin,
        vanishing=vanishing,
        exploding=exploding,
        floor=floor,
        ceiling=ceiling,
    )
    loss_request = LossRequest(loss, target, reduction, raw, forward_only=forward_only)
    request = Request(
        "check",
        ModelRequest(model, weights, rename, partial, model_args, method, attn, trust),
        input=InputRequest(input, shape, preprocess, size, mean, std),
        run=RunOptions(seed, dtype, device, train=train),
        loss=loss_request,
    )
    names, thresholds = options.names, options.thresholds
    has_chosen_loss = not loss_request.is_default
    objective: Objective | None = None
    if has_chosen_loss:
        objective = resolve_loss(loss_request)
    elif not forward_only:
        objective = Objective(
            lambda prepared, output: projection_loss(output, prepared.seed), False, None
        )
    prepared = prepare(request)
    metadata = describe_run("check", prepared, request.chosen(options))
    parameter_report = inspect_parameters(prepared.module, prepared.loaded.module)
    observation = run_and_observe(prepared, objective, chosen_loss=has_chosen_loss, margin=margin)
    uncalled = (
        unexecuted_modules(observation)
        if observation.failure is None and not prepared.train
        else []
    )
    gradient_trace: tuple[Record, ...] = ()
    if objective and not_finite(observation.gradients):
        gradient_trace = trace_gradients(prepared, objective)
    trained = frozenset(runs_in_training(prepared, uncalled) if uncalled else ())
    context = CheckContext(
        observation, parameter_report, thresholds, train, trained, gradient_trace, names
    )
    findings = [
        *failure_findings(context),
        *nonfinite_findings(context),
        *activation_findings(context),
        *gradient_findings(context),
        *untrained_parameter_findings(context),
        *unused_layer_findings(context),
        *dtype_promotion_findings(context),
        *parameter_findings(
            parameter_report, weights_from_file=prepared.loaded.weights.word not in UNTRAINED
        ),
    ]
    unavailable = _unavailable_checks(names, observation)
    return Health(
        tuple(_sort_findings(findings, names)),
        tuple(name for name in names if name not in unavailable),
        unavailable,
        thresholds.to_json(),
        metadata | observation.metadata,
    )


def _sort_findings(findings: Iterable[Finding], names: Sequence[str]) -> list[Finding]:
    """The findings of the chosen checks, the most severe first."""
    order = (RUN, *CHECKS)
    kept = [finding for finding in findings if finding.check in (RUN, *names)]
    return sorted(
        kept, key=lambda finding: (LEVELS.index(finding.level), order.index(finding.check))
    )


def _unavailable_checks(names: Iterable[str], observation: RunObservation) -> dict[str, str]:
    """The checks that the run could not make, and why."""
    failed = "the model failed" if observation.failure is not None else ""
    cause = failed or (
        f"no backward pass: {observation.no_backward}" if observation.no_backward else ""
    )
    missing = [n for n in names if CHECKS[n].backward or (failed and n == UNCALLED)]
    unavailable = dict.fromkeys(missing, cause) if cause else {}
    if not_finite(observation.gradients):
        sizes = [name for name in names if name in (VANISHING, EXPLODING)]
        if INF not in names and any(record.stats.inf for record in observation.gradients):
            sizes = [
                name for name in sizes if name != EXPLODING
            ]  # infinite gradients are exploding ones
        unavailable |= dict.fromkeys(sizes, "gradients are not finite")
    return unavailable
