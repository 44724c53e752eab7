"""Checks a model: one run forward and backward, and all findings in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hookscope.errors import ForwardError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.objective import objective_of_check
from hookscope.execution.prepare import Prepared, prepare
from hookscope.execution.provenance import describe_run
from hookscope.model_analysis.health.batch_check import batch_findings, row_count
from hookscope.model_analysis.health.determinism_check import determinism_findings
from hookscope.model_analysis.health.mask_check import mask_findings, refer_to_masks
from hookscope.model_analysis.health.parameter_report import (
    inspect_parameters,
    parameter_findings,
)
from hookscope.model_analysis.health.run_findings import (
    UNNORMALISED,
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
from hookscope.results.health import (
    SPREAD,
    Finding,
    Health,
    first_norms,
    gradient_marks,
)
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.specs.checks import (
    BATCH,
    CHECKS,
    DETERMINISM,
    DUPLICATED,
    ERROR,
    EXPLODING,
    FROZEN,
    INF,
    LEVELS,
    MASK,
    NAN,
    NOTE,
    RUN,
    UNCALLED,
    VANISHING,
    WARNING,
    Thresholds,
)
from hookscope.specs.command_options import CheckOptions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.module_names import parent_of
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import Request
from hookscope.specs.tensor_key import INPUT_GRAD, OUTPUT_GRAD, PARAM_GRAD

UNTRAINED = ("random", "as built", "as given")


def gradient_findings(context: CheckContext) -> Iterator[Finding]:
    """Gradients that are not finite, vanish or explode."""
    run, thresholds = context.run, context.thresholds
    if not_finite(run.gradients):
        kinds = context.nonfinite_kinds
        gradients = context.traced_gradients or run.gradients
        nonfinite = [r for r in gradients if _is_nonfinite(r.stats, kinds)]
        if nonfinite and not context.nonfinite_origins() and not context.nonfinite_parameters():
            yield _gradient_origin(nonfinite[0], kinds)
        infinite = next((r for r in run.gradients if r.stats.inf), None)
        if infinite and INF not in context.checks:
            yield _infinite_finding(infinite, thresholds)
        return
    marks = gradient_marks(run.gradients, thresholds)
    first = first_norms(run.gradients)
    largest = _largest_by_module(r for r in run.gradients if r.kind == PARAM_GRAD)
    for check in (VANISHING, EXPLODING):
        records = [r for r in run.gradients if marks.get(r.key) == check and r.kind != INPUT_GRAD]
        if check == VANISHING:  # the gradient of a bias before a normalisation is always zero
            records = [r for r in records if r.kind != PARAM_GRAD or r.key == largest[r.module].key]
        if records:
            finding = _size_finding(check, records, first, thresholds)
            reason = _harmless_reason(check, records[0], first, context)
            yield replace(finding, level=NOTE, hint=reason) if reason else finding


def _harmless_reason(
    check: str, nearest: Record, first: dict[str, float], context: CheckContext
) -> str:
    """Why small or large gradients are not a fault of the model; empty if they are."""
    report, gradients = context.report, context.run.gradients
    if check == VANISHING:
        outputs = [record for record in gradients if record.kind == OUTPUT_GRAD]
        ends = [record for record in gradients if record.kind == INPUT_GRAD] or outputs[-1:]
        reached = max((record.stats.norm or 0.0 for record in ends), default=0.0)
        if reached >= first.get(OUTPUT_GRAD, 0.0) * context.thresholds.vanishing:
            return (
                "Only this branch is affected: the gradient still reaches the start of the model."
            )
        nearer = {record.module for record in gradients[: gradients.index(nearest)]} - {ROOT}
        zeros = (tensor.name for tensor in report.tensors if tensor.all_zero)
        name = next((name for name in zeros if parent_of(name) in nearer), "")
        if nearest.stats.norm == 0 and name:
            return f"{name} is all zeros, a common initialisation, and passes no gradient back."
    return UNNORMALISED if context.unnormalised else ""


def _largest_by_module(records: Iterable[Record]) -> dict[str, Record]:
    largest: dict[str, Record] = {}
    for record in records:
        best = largest.get(record.module)
        if best is None or (record.stats.norm or 0) > (best.stats.norm or 0):
            largest[record.module] = record
    return largest


def _size_finding(
    check: str, records: Sequence[Record], first: dict[str, float], thresholds: Thresholds
) -> Finding:
    """One finding for all gradients that vanish, or explode, at the one nearest to the loss."""
    nearest = records[0]
    norm = nearest.stats.norm or 0.0
    ratio = norm / first[nearest.kind] if first.get(nearest.kind) else 0.0
    spread = SPREAD[nearest.kind]
    limit = thresholds.vanishing / spread if check == VANISHING else thresholds.exploding * spread
    others = tuple(dict.fromkeys(r.module for r in records if r.module != nearest.module))
    verb = "vanishes" if check == VANISHING else "explodes"
    norm_text = f"the gradient {verb}: the norm of {nearest.what} is {norm:.3g}"
    message = f"{norm_text}, {ratio:.3g} times the one nearest to the loss"
    measured, threshold = ratio, limit
    absmax = nearest.stats.absmax or 0.0
    if check == EXPLODING and ratio <= limit:
        message = f"the gradient explodes: the largest entry of {nearest.what} is {absmax:.3g}"
        measured, threshold = float(absmax), thresholds.ceiling
    elif check == VANISHING and ratio >= limit:
        message = norm_text
        measured, threshold = norm, thresholds.floor
    hint = (
        "The layers before it barely learn: use ReLUs, normalisation or skip connections."
        if check == VANISHING
        else "Clip gradients, add normalisation, or start with smaller weights."
    )
    return Finding(check, WARNING, nearest.module, message, measured, threshold, hint, others)


def _infinite_finding(record: Record, thresholds: Thresholds) -> Finding:
    """The finding for an infinite gradient if the check for infinities is not made."""
    share = f"{record.stats.inf:,} of {record.stats.numel:,} entries of {record.what}"
    message = f"the gradient explodes: {share} are infinite"
    hint = "Run the inf check too: it finds where they first appear."
    return Finding(EXPLODING, WARNING, record.module, message, math.inf, thresholds.ceiling, hint)


def _gradient_origin(first: Record, kinds: frozenset[str]) -> Finding:
    """The finding for the first gradient that is not finite, at the call that it came from."""
    stats = first.stats
    nan = NAN in kinds and stats.nan
    check, count = (NAN, stats.nan) if nan else (INF, stats.inf)
    kind = "NaN" if nan else "infinite"
    layer, what = first.module, "this module"
    if first.kind == OUTPUT_GRAD:  # made between this module and the next one
        layer = ROOT if first.module == ROOT else parent_of(first.module)
        used = f"the code that uses the output of {first.module}"
        what = "the loss" if first.module == ROOT else used
    message = f"the backward pass of {what} produces a gradient that is not finite"
    share = f"{count:,} of {stats.numel:,} entries of {first.module}/{first.what} are {kind}"
    hint = "sqrt and log have no finite derivative at 0: add a small constant inside."
    return Finding(check, ERROR, layer, f"{message}: {share}", count, 0, hint)


def not_finite(gradients: Iterable[Record]) -> bool:
    """Whether an entry of a gradient is NaN or infinite. Their sizes are then not checked."""
    return any(_is_nonfinite(record.stats, frozenset((NAN, INF))) for record in gradients)


def _is_nonfinite(stats: Stats, kinds: frozenset[str]) -> bool:
    return bool((NAN in kinds and stats.nan) or (INF in kinds and stats.inf))


def check_model(request: Request, options: CheckOptions) -> Health:
    """Run a model forward and a loss backward once, and diagnose it; see ``hookscope.check``."""
    names, thresholds = options.names, options.thresholds
    assert request.loss is not None
    objective = objective_of_check(request.loss)
    prepared = prepare(request)
    metadata = describe_run("check", prepared, request.chosen(options))
    parameter_report = inspect_parameters(prepared.module, prepared.loaded.module)
    if BATCH in names:
        row_count(prepared)  # before anything runs
    observation = RunObservation(())
    if not all(CHECKS[name].named for name in names):
        observation = run_and_observe(
            prepared, objective, chosen_loss=not request.loss.is_default, margin=options.margin
        )
    separate: dict[str, Callable[[], tuple[list[Finding], str]]] = {
        BATCH: partial(batch_findings, prepared),
        DETERMINISM: partial(determinism_findings, prepared, request, objective),
        MASK: partial(mask_findings, prepared),
    }
    chosen = {name: check for name, check in separate.items() if name in names}
    observation, separate_findings, reasons = _check_separately(prepared, chosen, observation)
    uncalled: list[str] = []
    if observation.failure is None and not prepared.train:
        uncalled = unexecuted_modules(observation)
    gradient_trace: tuple[Record, ...] = ()
    if objective and not_finite(observation.gradients):
        gradient_trace = trace_gradients(prepared, objective)
    trained = frozenset(runs_in_training(prepared, uncalled) if uncalled else ())
    context = CheckContext(
        observation, parameter_report, thresholds, request.run.train, trained, gradient_trace, names
    )
    findings = [
        *refer_to_masks(_findings(context), separate_findings),
        *separate_findings,
        *parameter_findings(
            parameter_report, weights_from_file=prepared.loaded.weights.name not in UNTRAINED
        ),
    ]
    unavailable = _unavailable_checks(names, observation) | reasons
    if prepared.loaded.source == ONNX:
        hint = "The file stores these values several times."
        findings = [
            replace(finding, level=NOTE, hint=hint) if finding.check == DUPLICATED else finding
            for finding in findings
            if finding.check != FROZEN
        ]
        unavailable |= {name: "an ONNX file is not trained" for name in names if name == FROZEN}
    return Health(
        tuple(sort_findings(findings, names)),
        tuple(name for name in names if name not in unavailable),
        unavailable,
        thresholds.to_json(),
        metadata | observation.metadata,
    )


def _check_separately(
    prepared: Prepared,
    checks: Mapping[str, Callable[[], tuple[list[Finding], str]]],
    observation: RunObservation,
) -> tuple[RunObservation, list[Finding], dict[str, str]]:
    """Make the checks that run the model themselves; each returns why it was not made, if so.

    Returns the observation with a failure of the model, the findings, and these reasons.
    """
    findings: list[Finding] = []
    reasons: dict[str, str] = {}
    for name, check in checks.items():
        try:
            if observation.failure is None:
                with explain_forward_errors(prepared):
                    found, reasons[name] = check()
                findings += found
        except ForwardError as error:
            if isinstance(error.exception, SystemExit):  # the model asks for the end
                raise
            observation = replace(observation, failure=error)
        if observation.failure is not None:
            reasons[name] = "the model failed"
    return observation, findings, {name: reason for name, reason in reasons.items() if reason}


def _findings(context: CheckContext) -> Iterator[Finding]:
    """The findings of the run; equally severe ones of a check stay in this order."""
    yield from failure_findings(context)
    yield from empty_findings(context)
    yield from nonfinite_findings(context)
    yield from activation_findings(context)
    yield from gradient_findings(context)
    yield from untrained_parameter_findings(context)
    yield from unused_layer_findings(context)
    yield from dtype_promotion_findings(context)


def sort_findings(findings: Iterable[Finding], names: Sequence[str]) -> list[Finding]:
    """Return the findings of the chosen checks, the most severe first."""
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
            # Infinite gradients are exploding ones.
            sizes = [name for name in sizes if name != EXPLODING]
        unavailable |= dict.fromkeys(sizes, "gradients are not finite")
    return unavailable
