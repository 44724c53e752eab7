"""Checks a model: one run forward and backward, and all findings in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookscope.execution.losses.loss import projection_loss
from hookscope.execution.objective import Objective, resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.model_analysis.health.gradient_findings import gradient_findings, not_finite
from hookscope.model_analysis.health.parameter_report import inspect_parameters, parameter_findings
from hookscope.model_analysis.health.run_findings import (
    CheckContext,
    activation_findings,
    dtype_promotion_findings,
    empty_findings,
    failure_findings,
    nonfinite_findings,
    unexecuted_modules,
    untrained_parameter_findings,
    unused_layer_findings,
)
from hookscope.model_analysis.health.run_observation import (
    RunObservation,
    run_and_observe,
    runs_in_training,
    trace_gradients,
)
from hookscope.results.health import Finding, Health
from hookscope.results.records import Record
from hookscope.specs.command_options import CheckOptions
from hookscope.specs.health_checks import (
    CHECKS,
    EXPLODING,
    FROZEN,
    INF,
    LEVELS,
    RUN,
    UNCALLED,
    VANISHING,
)
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import Request

UNTRAINED = ("random", "as built", "as given")


def check_model(request: Request, options: CheckOptions) -> Health:
    """Run a model forward and a loss backward once, and diagnose it; see ``hookscope.check``."""
    names, thresholds = options.names, options.thresholds
    loss_request = request.loss
    assert loss_request is not None
    has_chosen_loss = not loss_request.is_default
    objective: Objective | None = None
    if has_chosen_loss:
        objective = resolve_loss(loss_request)
    elif not loss_request.forward_only:
        objective = Objective(
            lambda prepared, output: projection_loss(output, prepared.seed), False, None
        )
    prepared = prepare(request)
    metadata = describe_run("check", prepared, request.chosen(options))
    parameter_report = inspect_parameters(prepared.module, prepared.loaded.module)
    observation = run_and_observe(
        prepared, objective, chosen_loss=has_chosen_loss, margin=options.margin
    )
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
        observation, parameter_report, thresholds, request.run.train, trained, gradient_trace, names
    )
    findings = [
        *failure_findings(context),
        *empty_findings(context),
        *nonfinite_findings(context),
        *activation_findings(context),
        *gradient_findings(context),
        *untrained_parameter_findings(context),
        *unused_layer_findings(context),
        *dtype_promotion_findings(context),
        *parameter_findings(
            parameter_report, weights_from_file=prepared.loaded.weights.name not in UNTRAINED
        ),
    ]
    unavailable = _unavailable_checks(names, observation)
    if prepared.loaded.source == ONNX and FROZEN in names:
        findings = [finding for finding in findings if finding.check != FROZEN]
        unavailable[FROZEN] = "an ONNX file is not trained"
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
