"""From what was seen to findings: values, gradients, and what never took part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hookscope.analysis.health.module_names import lies_in, outermost, topmost
from hookscope.analysis.health.nonfinite_origin import NonFiniteOrigin, TensorObservation, births
from hookscope.analysis.health.parameter_report import ParameterReport
from hookscope.analysis.health.run_observation import RunObservation
from hookscope.hooks.layer_coverage import UNEXPLAINED
from hookscope.results.health import Finding
from hookscope.results.module_tree import ROOT
from hookscope.results.records import Record
from hookscope.specs.health_checks import (
    CHECKS,
    DEAD,
    DTYPES,
    ERROR,
    FROZEN,
    INF,
    NAN,
    NOTE,
    RUN,
    SATURATED,
    UNCALLED,
    UNUSED,
    WARNING,
    Thresholds,
)
from hookscope.specs.record_kinds import INPUT, OP, OUTPUT, PARAM_GRAD

FEW = 16  # so many values say something of a unit, so many entries something of a layer
FEWEST = 8  # units of a layer that tell by being zero all together


@dataclass(frozen=True)
class CheckContext:
    """All that is judged.

    Attributes:
        seen: the run.
        standing: parameters and buffers.
        thresholds: from where on something is a finding.
        training: whether the model ran in training mode.
        in_training: modules that did not run and do in training mode.
        traced: gradients of a second run, at inputs too; empty unless one is not finite.
        checks: names of the checks that are made.
    """

    seen: RunObservation
    standing: ParameterReport
    thresholds: Thresholds
    training: bool = False
    in_training: frozenset[str] = frozenset()
    traced: tuple[Record, ...] = ()
    checks: tuple[str, ...] = tuple(CHECKS)

    @property
    def not_finite(self) -> frozenset[str]:
        """What is looked for of ``nan`` and ``inf``; both where neither check is made.

        Where one check is made alone, what the other would find explains nothing: NaN that comes
        from an infinity is found by ``nan`` where it first is NaN.
        """
        return frozenset({NAN, INF} & set(self.checks)) or frozenset({NAN, INF})

    def births(self) -> list[NonFiniteOrigin]:
        """Where what is looked for arose going forward."""
        found = births(self.seen.sights)
        if len(self.not_finite) == 2:
            return found
        alone = [self._narrowed(sight) for sight in self.seen.sights]
        found = [replace(birth, seen=self._narrowed(birth.seen)) for birth in found]
        found = [b for b in found if b.seen.nan or b.seen.inf or b.seen.minus_inf]
        known = {(birth.module, birth.function) for birth in found}
        return found + [b for b in births(alone) if (b.module, b.function) not in known]

    def _narrowed(self, sight: TensorObservation) -> TensorObservation:
        """What was seen of a tensor, without what is not looked for."""
        if NAN in self.not_finite:
            return replace(sight, inf=0, minus_inf=0) if sight.inf or sight.minus_inf else sight
        return replace(sight, nan=0) if sight.nan else sight

    def broken_parameters(self) -> list[str]:
        """The names of parameters and buffers that hold what is looked for."""
        nan, inf = NAN in self.not_finite, INF in self.not_finite
        return [h.name for h in self.standing.held if (nan and h.nan) or (inf and h.inf)]


def failure_findings(facts: CheckContext) -> Iterator[Finding]:
    """What is wrong with the run itself."""
    error = facts.seen.failure
    if error is not None:
        _, known, hint = error.hint.partition("The input was")
        lines = error.failure.explanation() if error.failure is not None else []
        told = " ".join((*lines, known + hint)).strip()
        yield Finding(RUN, ERROR, error.layer, error.message, 1, 0, told)


def nonfinite_findings(facts: CheckContext) -> Iterator[Finding]:
    """Where NaN and infinities arose going forward."""
    broken = facts.broken_parameters()
    found = facts.births()
    causes = births(facts.seen.sights) if len(facts.not_finite) == 1 else found
    for birth in found:
        if any(lies_in(name, birth.module) for name in broken if birth.module != ROOT):
            continue  # its parameters are told of
        first = birth.seen
        check = NAN if first.nan else INF
        count = first.nan or first.inf + first.minus_inf
        kind, noun = ("NaN", "NaN") if first.nan else ("infinite", "infinity")
        share = f"{count:,} of {first.numel:,} entries are {kind}"
        if not birth.module:
            told = f"{noun} comes in with the model's own {first.what}: {share}"
            yield Finding(check, ERROR, ROOT, told, count, 0, "Look at the file of --input.")
            continue
        if birth.module == ROOT and broken and not birth.function:
            continue
        where = (
            f"in {birth.function}()" if birth.function else f"seen in {_of(first, birth.module)}"
        )
        told = f"{noun} arises here, {where}: {share}"
        hint = _cause(birth, causes) or _cure(first)
        yield Finding(check, ERROR, birth.module, told, count, 0, hint)


def _cause(birth: NonFiniteOrigin, causes: Sequence[NonFiniteOrigin]) -> str:
    """Where what goes in is not finite either, though of the kind that is not looked for."""
    if not causes or any((b.module, b.function) == (birth.module, birth.function) for b in causes):
        return ""
    other = INF if birth.seen.nan else NAN
    what = "Infinity" if other == INF else "NaN"
    place = causes[0].module or "the model's own input"
    return f"{what} goes in, which begins at {place}: run the check {other} too."


def _of(sight: TensorObservation, module: str) -> str:
    owner = "" if sight.module == module else f"{sight.module}'s "
    return f"{owner}{sight.place}"


def _cure(sight: TensorObservation) -> str:
    if sight.dtype == "float16":
        return "float16 ends at 65,504: use bfloat16 or float32, or scale down what goes in."
    return "What goes in is finite: look for a log, a root, a division or an exp, and bound it."


def activation_findings(facts: CheckContext) -> Iterator[Finding]:
    """Dead units and saturated activations."""
    limits = facts.thresholds
    for sight in facts.seen.sights:
        where = "" if sight.what == OUTPUT and sight.call == 1 else f" ({sight.place})"
        dead, full = sight.dead, sight.saturated
        if dead is not None and dead.count and dead.share >= limits.dead:
            all_zero = dead.share == 1 and dead.of >= FEWEST
            if dead.values >= FEW or all_zero:
                told = f"{dead.count:,} of {dead.of:,} units are zero everywhere{where}"
                hint = "No gradient comes back through them: look at the bias before, and the input"
                hint += " (--input), or lower the learning rate that it was trained with."
                yield _warned(DEAD, sight.module, told, dead.share, limits.dead, hint)
        if full is not None and full.of >= FEW and full.count and full.share >= limits.saturated:
            what = "entries lie at a bound" if full.values == 1 else "rows have one entry near 1"
            told = f"{full.count:,} of {full.of:,} {what}{where}"
            hint = "Next to no gradient comes back through them: scale down what goes in."
            yield _warned(SATURATED, sight.module, told, full.share, limits.saturated, hint)


def unused_layer_findings(facts: CheckContext) -> Iterator[Finding]:
    """Modules that never ran."""
    seen = facts.seen
    if seen.failure is not None:
        return
    weights = [held.name for held in facts.standing.held if held.parameter]
    bare: list[str] = []
    for name in _uncalled(facts):
        inside = sum(lies_in(weight, name) for weight in weights)
        if name in facts.in_training:
            told = "it runs in training mode only"
            yield Finding(UNCALLED, NOTE, name, told, 0, None, "Add --train to check it too.")
        elif inside:
            told = f"it never runs, and has {inside:,} parameter{'s' * (inside > 1)}"
            hint = "Call it in forward, or take it out."
            yield _warned(UNCALLED, name, told, 0, None, hint)
        else:
            bare.append(name)
    if bare:
        told = "it never runs, and has no parameters"
        yield Finding(UNCALLED, NOTE, bare[0], told, 0, None, others=tuple(bare[1:]))


def unexecuted_modules(seen: RunObservation) -> list[str]:
    """The modules that never ran for a reason that the model's structure does not tell."""
    trained = {record.module for record in seen.gradients if record.kind == PARAM_GRAD}
    not_executed = [
        s.module for s in seen.coverage.not_executed if s.reason.startswith(UNEXPLAINED)
    ]
    used = [name for name in not_executed if any(lies_in(owner, name) for owner in trained)]
    return outermost(name for name in not_executed if name not in used)


def _uncalled(facts: CheckContext) -> list[str]:
    return unexecuted_modules(facts.seen)


def untrained_parameter_findings(facts: CheckContext) -> Iterator[Finding]:
    """Parameters that get no gradient: frozen ones, and those outside the loss."""
    parameters = [held for held in facts.standing.held if held.parameter]
    names = [held.name for held in parameters]
    frozen = [held.name for held in parameters if not held.trainable]
    for layer, held in topmost(frozen, names).items():
        whole = len(frozen) == len(names)
        told = f"{_some(held, layer, names)} frozen: requires_grad is False"
        hint = "Unfreeze it with requires_grad_(), or leave this check out with --skip frozen."
        level = NOTE if whole else WARNING
        yield Finding(FROZEN, level, layer, told, len(held), None, hint)
    if facts.seen.no_backward:
        return
    idle = _uncalled(facts)
    missed = {
        f"{absent.module}.{absent.what.removesuffix('.grad')}".removeprefix("..")
        for absent in facts.seen.absent
        if absent.kind == PARAM_GRAD
    }
    unused = [name for name in names if name in missed and name not in frozen]
    unused = [name for name in unused if not any(lies_in(name, module) for module in idle)]
    for layer, held in topmost(unused, (n for n in names if n not in frozen)).items():
        told = f"{_some(held, layer, names)} outside the loss: no gradient comes back"
        hint = "Use what it computes, take it out, or choose another --loss."
        yield _warned(UNUSED, layer, told, len(held), None, hint)


def _some(held: Sequence[str], layer: str, names: Sequence[str]) -> str:
    """What of a layer: all of it, or which parameters."""
    whole = [name for name in names if lies_in(name, layer)]
    if len(held) == len(whole):
        return f"all its parameters ({len(held):,}) are"
    own = [name if layer == ROOT else name.removeprefix(f"{layer}.") for name in held]
    verb = "is" if len(own) == 1 else "are"
    return f"{', '.join(own[:4])}{' and more' if len(own) > 4 else ''} {verb}"


def dtype_promotion_findings(facts: CheckContext) -> Iterator[Finding]:
    """Values in float64 where the model has none."""
    wide = [s.module for s in facts.seen.sights if s.dtype == "float64" and s.kind != OP]
    own = {held.dtype for held in facts.standing.held if held.parameter}
    entered = any(s.kind == INPUT and s.module == ROOT for s in facts.seen.sights[:8])
    if not wide or "float64" in own or not own or (entered and wide[0] == ROOT):
        return
    told = f"a float64 tensor passes here in a model of {', '.join(sorted(own))}"
    hint = "It costs time and memory: a NumPy array or a Python float is likely behind it."
    others = tuple(dict.fromkeys(name for name in wide if name != wide[0]))
    yield Finding(DTYPES, WARNING, wide[0], told, 1 + len(others), None, hint, others)


def _warned(
    check: str, layer: str, told: str, measured: float, threshold: float | None, hint: str
) -> Finding:
    return Finding(check, WARNING, layer, told, measured, threshold, hint)
