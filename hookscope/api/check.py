"""Look for what is wrong with a model."""

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
from hookscope.specs.request import InputRequest, LossRequest, ModelRequest, Request, RunOptions

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
    """Run a model forward and a loss backward once, and say what is wrong with it.

    Everything is judged as it passes; no activation and no gradient is kept. Keywords that
    ``grads`` has too mean the same here.

    Args:
        only: names of the checks to make, in a list or with commas between; None for all.
        skip: names of checks to leave out.
        dead: from which share of units on that are zero everywhere a ReLU-like layer is told of.
        saturated: from which share of entries at a bound on.
        margin: how near a bound is at it, as a share of the width between the bounds.
        vanishing: under which share of the gradient's norm nearest to the loss; for parameters
            under 1/100 of it.
        exploding: the same upwards; for parameters 100 times it.
        floor: under which norm a gradient has vanished whatever the others are.
        ceiling: over which entry a gradient has exploded.
        forward_only: run no backward pass.
        loss: as for ``grads``. None, if no target is given either: the output along a random
            direction, which any model has.

    Raises:
        LossError: the loss or its target does not fit the output.
        RequestError: there is no such check, or a threshold is out of range.
        CheckFailed: hooks change what the model returns.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> _ = torch.nn.init.constant_(net[0].bias, -100)
        >>> [(f.check, f.layer) for f in hookscope.check(net, input=torch.ones(2, 4)).findings]
        [('dead', '1'), ('vanishing', '0')]
    """
    own = CheckOptions(
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
    asked = LossRequest(loss, target, reduction, raw, forward_only=forward_only)
    request = Request(
        "check",
        ModelRequest(model, weights, rename, partial, model_args, method, attn, trust),
        input=InputRequest(input, shape, preprocess, size, mean, std),
        run=RunOptions(seed, dtype, device, train=train),
        loss=asked,
    )
    names, thresholds = own.names, own.thresholds
    own_loss = not asked.is_default
    measure: Objective | None = None
    if own_loss:
        measure = resolve_loss(asked)
    elif not forward_only:
        measure = Objective(
            lambda prepared, output: projection_loss(output, prepared.seed), False, None
        )
    prepared = prepare(request)
    metadata = describe_run("check", prepared, request.chosen(own))
    standing = inspect_parameters(prepared.module, prepared.loaded.module)
    seen = run_and_observe(prepared, measure, own_loss=own_loss, margin=margin)
    idle = unexecuted_modules(seen) if seen.failure is None and not prepared.train else []
    traced: tuple[Record, ...] = ()
    if measure and not_finite(seen.gradients):
        traced = trace_gradients(prepared, measure)
    trained = frozenset(runs_in_training(prepared, idle) if idle else ())
    facts = CheckContext(seen, standing, thresholds, train, trained, traced, names)
    found = [
        *failure_findings(facts),
        *nonfinite_findings(facts),
        *activation_findings(facts),
        *gradient_findings(facts),
        *untrained_parameter_findings(facts),
        *unused_layer_findings(facts),
        *dtype_promotion_findings(facts),
        *parameter_findings(
            standing, weights_from_file=prepared.loaded.weights.word not in UNTRAINED
        ),
    ]
    unmade = _unmade(names, seen)
    return Health(
        tuple(_sorted(found, names)),
        tuple(name for name in names if name not in unmade),
        unmade,
        thresholds.to_json(),
        metadata | seen.told,
    )


def _sorted(found: Iterable[Finding], names: Sequence[str]) -> list[Finding]:
    """The findings of the checks asked for, the worst first."""
    order = (RUN, *CHECKS)
    kept = [one for one in found if one.check in (RUN, *names)]
    return sorted(kept, key=lambda one: (LEVELS.index(one.level), order.index(one.check)))


def _unmade(names: Iterable[str], seen: RunObservation) -> dict[str, str]:
    """The checks that the run did not come to, and why."""
    failed = "the model failed" if seen.failure is not None else ""
    cause = failed or (f"no backward pass: {seen.no_backward}" if seen.no_backward else "")
    missing = [n for n in names if CHECKS[n].backward or (failed and n == UNCALLED)]
    unmade = dict.fromkeys(missing, cause) if cause else {}
    if not_finite(seen.gradients):
        sizes = [name for name in names if name in (VANISHING, EXPLODING)]
        if INF not in names and any(record.stats.inf for record in seen.gradients):
            sizes = [name for name in sizes if name != EXPLODING]  # infinite ones explode
        unmade |= dict.fromkeys(sizes, "gradients are not finite")
    return unmade
