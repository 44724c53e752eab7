"""Findings from the observed run: values, activations, and unused layers and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hookscope.files.words import ranges_text
from hookscope.hooks.layers import UNEXPLAINED
from hookscope.model_analysis.health.nonfinite_origin import NonFiniteOrigin, find_nonfinite_origins
from hookscope.model_analysis.health.parameter_report import ParameterReport
from hookscope.model_analysis.health.run_observation import (
    MINUS_INF,
    Ratio,
    RunObservation,
    TensorObservation,
)
from hookscope.results.health import Finding
from hookscope.results.records import Record
from hookscope.specs.checks import (
    CHECKS,
    DEAD,
    DTYPES,
    ERROR,
    FROZEN,
    INF,
    MASK,
    NAN,
    NOTE,
    RUN,
    SATURATED,
    UNCALLED,
    UNUSED,
    WARNING,
    Thresholds,
)
from hookscope.specs.module_names import lies_in, outermost, topmost
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import INPUT, OP, OUTPUT, PARAM_GRAD

FEW = 16  # values of a unit, or entries of a layer, that are enough for a finding
FEWEST = 8  # units of a layer that are enough if all of them are zero
LISTED_RANGES = 12  # ranges of dead units that a message lists
# Functions in which finite numbers and a mask make NaN.
_ATTENTION = ("multi_head_attention_forward", "scaled_dot_product_attention", "softmax")
UNNORMALISED = "Batch normalisation has no statistics yet (see batchnorm): try --train."


@dataclass(frozen=True)
class CheckContext:
    """The data that findings are made from."""

    run: RunObservation
    report: ParameterReport
    thresholds: Thresholds
    training: bool = False
    in_training: frozenset[str] = frozenset()
    traced_gradients: tuple[Record, ...] = ()
    checks: tuple[str, ...] = tuple(CHECKS)

    @property
    def nonfinite_kinds(self) -> frozenset[str]:
        """Which of ``nan`` and ``inf`` to look for; both if neither check is made."""
        return frozenset({NAN, INF} & set(self.checks)) or frozenset({NAN, INF})

    def nonfinite_origins(self) -> list[NonFiniteOrigin]:
        """Where NaN or infinities, as far as they are looked for, arose in the forward pass."""
        origins = find_nonfinite_origins(self.run.observations)
        if len(self.nonfinite_kinds) == 2:
            return origins
        origins = [replace(origin, first=self._restricted(origin.first)) for origin in origins]
        origins = [o for o in origins if o.first.nan or o.first.inf or o.first.minus_inf]
        known = {(origin.module, origin.function) for origin in origins}
        further = find_nonfinite_origins(map(self._restricted, self.run.observations))
        return origins + [o for o in further if (o.module, o.function) not in known]

    @property
    def unnormalised(self) -> bool:
        """Whether batch normalisation is in eval mode, and its statistics are still 0 and 1."""
        report = self.report
        return bool(report.never_updated) and not report.updated and not self.training

    def _restricted(self, observation: TensorObservation) -> TensorObservation:
        """The observation without the counts of what is not looked for."""
        kinds = observation.arguments
        if NAN not in self.nonfinite_kinds:
            return replace(observation, nan=0, arguments=kinds - {NAN})
        return replace(observation, inf=0, minus_inf=0, arguments=kinds - {INF, MINUS_INF})

    def nonfinite_parameters(self) -> list[str]:
        """The names of parameters and buffers with NaN or infinities that are looked for."""
        nan, inf = NAN in self.nonfinite_kinds, INF in self.nonfinite_kinds
        return [t.name for t in self.report.tensors if (nan and t.nan) or (inf and t.inf)]


def failure_findings(context: CheckContext) -> Iterator[Finding]:
    """The failure of the run itself."""
    error = context.run.failure
    if error is not None:
        _, known, hint = error.hint.partition("The input was")
        lines = error.failure.explanation() if error.failure is not None else []
        hint = " ".join((*lines, known + hint)).strip()
        yield Finding(RUN, ERROR, error.layer, error.message, 1, 0, hint)


def empty_findings(context: CheckContext) -> Iterator[Finding]:
    """A run in which no output has an entry, so that no check can find anything."""
    outputs = [one for one in context.run.observations if one.kind == OUTPUT]
    if outputs and not any(one.numel for one in outputs):
        yield Finding(
            RUN,
            WARNING,
            ROOT,
            "no output of a layer has any entries, so nothing was checked",
            len(outputs),
            0,
            "Give an input that has entries: --shape or --input.",
        )


def nonfinite_findings(context: CheckContext) -> Iterator[Finding]:
    """Where NaN and infinities arose in the forward pass."""
    nonfinite = context.nonfinite_parameters()
    origins = causes = context.nonfinite_origins()
    if len(context.nonfinite_kinds) == 1:
        causes = find_nonfinite_origins(context.run.observations)
    for origin in origins:
        if any(lies_in(name, origin.module) for name in nonfinite if origin.module != ROOT):
            continue  # there is a finding for its parameters
        first = origin.first
        check = NAN if first.nan else INF
        count = first.nan or first.inf + first.minus_inf
        kind, noun = ("NaN", "NaN") if first.nan else ("infinite", "infinity")
        share = f"{count:,} of {first.numel:,} entries are {kind}"
        if not origin.module:
            message = f"{noun} in the model's own input ({first.what}): {share}"
            yield Finding(check, ERROR, ROOT, message, count, 0, "Check the values of --input.")
            continue
        if origin.module == ROOT and nonfinite and not origin.function:
            continue
        where = f"seen in {_describe_tensor(first, origin.module)}"
        if origin.function:
            where = f"in {origin.function}()"
        message = f"{noun} first appears here, {where}: {share}"
        hint = _cause(origin, causes) or _remedy(origin, context.checks)
        yield Finding(check, ERROR, origin.module, message, count, 0, hint)


def _cause(origin: NonFiniteOrigin, causes: Sequence[NonFiniteOrigin]) -> str:
    """The hint if the input has values of the other kind, which is not looked for; else empty."""
    known = {(cause.module, cause.function) for cause in causes}
    if not causes or (origin.module, origin.function) in known:
        return ""
    other = INF if origin.first.nan else NAN
    what = "infinities" if other == INF else "NaN"
    start = causes[0].module or "the model's own input"
    return f"Its input contains {what}, first seen at {start}: run the {other} check too."


def _describe_tensor(observation: TensorObservation, module: str) -> str:
    owner = "" if observation.module == module else f"{observation.module}'s "
    return f"{owner}{observation.label}"


def _remedy(origin: NonFiniteOrigin, checks: Sequence[str]) -> str:
    if origin.first.dtype == "float16":
        return "The largest float16 is 65,504: use bfloat16 or float32, or scale the input down."
    if origin.function.partition(".")[0] in _ATTENTION and origin.first.nan:
        further = "" if MASK in checks else " Run the mask check too."
        return f"Softmax gives NaN where a mask leaves it no key.{further}"
    return "The input is finite: look for a log, root, division or exp, and bound its argument."


def activation_findings(context: CheckContext) -> Iterator[Finding]:
    """Dead units and saturated activations.

    Some dead units are a note while batch normalisation does not normalise: in eval mode half of
    googlenet's units in a layer are zero on noise as built, and none in train mode.
    """
    limits = context.thresholds
    for observation in context.run.observations:
        module, dead, saturated = observation.module, observation.dead, observation.saturated
        first_output = observation.what == OUTPUT and observation.call == 1
        where = "" if first_output else f" ({observation.label})"
        reported = dead is not None and (dead.share >= limits.dead or context.checks == (DEAD,))
        if dead is not None and dead.count and reported:
            all_zero = dead.share == 1 and dead.of >= FEWEST
            if dead.values >= FEW or all_zero:
                yield _dead_finding(context, module, where, dead)
        if saturated is None or saturated.of < FEW or not saturated.count:
            continue
        if saturated.share >= limits.saturated:
            elementwise = saturated.values == 1
            what = "entries are at a bound" if elementwise else "rows have one entry near 1"
            message = f"{saturated.count:,} of {saturated.of:,} {what}{where}"
            hint = "They pass almost no gradient back: scale the input down."
            share, limit = saturated.share, limits.saturated
            yield Finding(SATURATED, WARNING, module, message, share, limit, hint)


def _dead_finding(context: CheckContext, module: str, where: str, dead: Ratio) -> Finding:
    """The finding for a layer's dead units, which are listed unless all units are dead."""
    if dead.share == 1:
        message = f"all {dead.of:,} units are dead (always zero){where}"
    else:
        ranges = ranges_text(dead.indices).split(", ")
        if len(ranges) > LISTED_RANGES:
            ranges = [*ranges[:LISTED_RANGES], "... (--json lists all)"]
        below = dead.share < context.thresholds.dead
        limit = f" (below the threshold {100 * context.thresholds.dead:.3g}%)"
        state = f"always zero{where}{limit}" if below else f"dead (always zero){where}"
        message = f"{dead.count:,} of {dead.of:,} units are {state}: {', '.join(ranges)}"
    hint = "They pass no gradient back: check the bias before them, the --input, and the learning"
    hint += " rate of the training."
    finding = Finding(DEAD, WARNING, module, message, dead.share, context.thresholds.dead, hint)
    finding = replace(finding, units=dead.indices)
    if dead.share < context.thresholds.dead:
        return replace(finding, level=NOTE, hint="")
    if dead.share < 1 and context.unnormalised:
        return replace(finding, level=NOTE, hint=UNNORMALISED)
    return finding


def unused_layer_findings(context: CheckContext) -> Iterator[Finding]:
    """Modules that never ran."""
    run = context.run
    if run.failure is not None:
        return
    weights = [tensor.name for tensor in context.report.tensors if tensor.parameter]
    without_parameters: list[str] = []
    for name in unexecuted_modules(run):
        inside = sum(lies_in(weight, name) for weight in weights)
        if name in context.in_training:
            message = "runs only in training mode"
            yield Finding(UNCALLED, NOTE, name, message, 0, None, "Add --train to check it too.")
        elif inside:
            message = f"never runs, and has {inside:,} parameter{'s' * (inside > 1)}"
            hint = "Call it in forward, or remove it."
            yield Finding(UNCALLED, WARNING, name, message, 0, None, hint)
        else:
            without_parameters.append(name)
    if without_parameters:
        message = "never runs, and has no parameters"
        first, *others = without_parameters
        yield Finding(UNCALLED, NOTE, first, message, 0, None, others=tuple(others))


def unexecuted_modules(run: RunObservation) -> list[str]:
    """The modules that did not run, for no reason that follows from the model's structure."""
    trained = {record.module for record in run.gradients if record.kind == PARAM_GRAD}
    not_executed = [s.module for s in run.coverage.not_executed if s.reason.startswith(UNEXPLAINED)]
    used = [name for name in not_executed if any(lies_in(owner, name) for owner in trained)]
    return outermost(name for name in not_executed if name not in used)


def untrained_parameter_findings(context: CheckContext) -> Iterator[Finding]:
    """Parameters that get no gradient: frozen ones, and those outside the loss."""
    parameters = [tensor for tensor in context.report.tensors if tensor.parameter]
    names = [parameter.name for parameter in parameters]
    frozen = [parameter.name for parameter in parameters if not parameter.trainable]
    for layer, group in topmost(frozen, names).items():
        whole = len(frozen) == len(names)
        message = f"{_subject_of(group, layer, names)} frozen: requires_grad is False"
        hint = "Unfreeze with requires_grad_(), or add --skip frozen if this is intended."
        level = NOTE if whole else WARNING
        yield Finding(FROZEN, level, layer, message, len(group), None, hint)
    if context.run.no_backward:
        return
    unexecuted = unexecuted_modules(context.run)
    without_gradient = {
        f"{absent.module}.{absent.what.removesuffix('.grad')}".removeprefix("..")
        for absent in context.run.absent
        if absent.kind == PARAM_GRAD
    }
    unused = [name for name in names if name in without_gradient and name not in frozen]
    unused = [name for name in unused if not any(lies_in(name, module) for module in unexecuted)]
    for layer, group in topmost(unused, (n for n in names if n not in frozen)).items():
        message = f"{_subject_of(group, layer, names)} unused by the loss: the gradient is None"
        hint = "Use its result, remove it, or choose another --loss."
        yield Finding(UNUSED, WARNING, layer, message, len(group), None, hint)


def _subject_of(parameters: Sequence[str], layer: str, names: Sequence[str]) -> str:
    """The subject of a sentence: some of a layer's parameters, or all of them."""
    in_layer = [name for name in names if lies_in(name, layer)]
    if len(parameters) == len(in_layer):
        return f"all its parameters ({len(parameters):,}) are"
    local = [name if layer == ROOT else name.removeprefix(f"{layer}.") for name in parameters]
    verb = "is" if len(local) == 1 else "are"
    return f"{', '.join(local[:4])}{' and more' if len(local) > 4 else ''} {verb}"


def dtype_promotion_findings(context: CheckContext) -> Iterator[Finding]:
    """Values in float64 in a model without float64 parameters."""
    observations = context.run.observations
    modules = [o.module for o in observations if o.dtype == "float64" and o.kind != OP]
    dtypes = {tensor.dtype for tensor in context.report.tensors if tensor.parameter}
    if not modules or not dtypes or "float64" in dtypes:
        return
    has_input = any(o.kind == INPUT and o.module == ROOT for o in observations[:8])
    if has_input and modules[0] == ROOT:
        return
    names = ", ".join(sorted(dtypes))
    message = f"receives or returns a float64 tensor, and the model's parameters are {names}"
    hint = "This costs time and memory. A NumPy array, float64 by default, is a likely cause."
    first, *others = dict.fromkeys(modules)
    yield Finding(DTYPES, WARNING, first, message, 1 + len(others), None, hint, tuple(others))
