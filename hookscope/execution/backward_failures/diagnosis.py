"""What a failed backward pass says, with changes to try; and the search for one that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from hookscope.execution.backward_failures.code_sites import CallSite
from hookscope.execution.backward_failures.graph_observer import (
    INPUT,
    RESULT,
    GraphObserver,
    InPlaceChange,
    SavedTensor,
)
from hookscope.execution.backward_failures.in_place_changes import (
    cloned_arguments,
    has_inplace,
    operator_name,
    replacements,
)
from hookscope.execution.backward_failures.source_patches import SourcePatch
from hookscope.results.failure import IN_PLACE, NAN, BackwardFailure, CodeLine

RENORM = "aten::embedding_renorm_"
_MOST_PLACES = 3  # that are named
_MOST_PATCHES = 4  # that are needed together
NameOf = Callable[[nn.Module], str]


@dataclass(frozen=True)
class Diagnosis:
    """What happened in a failed backward pass, and changes that may help, the best first."""

    kind: str
    story: tuple[str, ...] = ()
    lines: tuple[CodeLine, ...] = ()
    candidates: tuple[SourcePatch, ...] = ()
    suggestions: tuple[str, ...] = ()

    def failure(self, tried: Sequence[str] = ()) -> BackwardFailure:
        """Return it as a result, with the changes that were tried and helped."""
        suggestions = () if tried else self.suggestions
        return BackwardFailure(self.kind, self.story, self.lines, tuple(tried), suggestions)


# Runs the pass with changes; None if it succeeds, else the diagnosis of its failure.
Trial = Callable[[Sequence[SourcePatch]], Diagnosis | None]


def tried_failure(diagnosis: Diagnosis, trial: Trial) -> BackwardFailure:
    """Return a diagnosis with the changes that were tried and helped."""
    patches = _helping(diagnosis, trial)
    if not patches:
        return diagnosis.failure()
    words = " and ".join(patch.words for patch in patches)
    outcome = "all gradients are finite" if diagnosis.kind == NAN else "the backward pass runs"
    return diagnosis.failure([f"{words}, {outcome}."])


def _helping(diagnosis: Diagnosis, trial: Trial) -> list[SourcePatch]:
    """The changes that let the pass run together; empty if none were found."""
    chosen: list[SourcePatch] = []
    while len(chosen) < _MOST_PATCHES:
        helped: list[tuple[SourcePatch, Diagnosis]] = []
        for patch in diagnosis.candidates:
            after = trial([*chosen, patch])
            if after is None:
                return [*chosen, patch]
            # Another tensor is the next to fail: this change has helped, but is not enough.
            if after.kind == diagnosis.kind and after.lines != diagnosis.lines:
                helped.append((patch, after))
        if not helped:
            return []
        chosen.append(helped[0][0])
        diagnosis = helped[0][1]
    return []


def diagnose_in_place(observer: GraphObserver, name_of: NameOf) -> Diagnosis | None:
    """Return what changed the saved tensor that a backward pass needed; None if nothing did."""
    saved = observer.broken
    if saved is None:
        return None
    story = [_saving(saved, name_of)]
    sites = [saved.site]
    if not saved.changes:
        story.append("It was changed in place afterwards, by code that is not Python's.")
        return Diagnosis(IN_PLACE, tuple(story), lines_of(sites))
    change = saved.changes[0]
    sites.append(change.site)
    place = "" if change.site is None else f" in {place_of(change.site, name_of)}"
    when = "in a backward pass" if change.in_backward else "before backward"
    story.append(f"It was overwritten by {change_in_words(change, name_of)}{place} {when}.")
    story += _later_changes(saved, change)
    candidates = tuple(_candidates(saved, change))
    is_optimizer = change.site is not None and change.site.is_optimizer
    advice = advice_against(is_optimizer=is_optimizer, is_weight=saved.is_weight)
    return Diagnosis(IN_PLACE, tuple(story), lines_of(sites), candidates, (advice,))


def _candidates(saved: SavedTensor, change: InPlaceChange) -> Iterator[SourcePatch]:
    """Changes with which the saved tensor may stay as it was, the best first."""
    if not saved.is_weight:  # another tensor in its place would leave the weight as it was
        yield from replacements(change)
    if saved.role == INPUT and saved.site is not None:
        yield from cloned_arguments(saved.site)


def advice_against(*, is_optimizer: bool, is_weight: bool) -> str:
    """Return what to do about a change, of a weight, or by an optimizer."""
    if is_optimizer:
        return (
            "compute the loss again after the step of the optimizer, step later, or detach() what"
            " is kept from the step before."
        )
    if is_weight:
        return "change the weight after the backward pass, or compute the loss after the change."
    return "let the operator return a new tensor, or clone the tensor before it is changed."


def lines_of(sites: Iterable[CallSite | None]) -> tuple[CodeLine, ...]:
    """Return the lines of sites as plain data, each once."""
    return tuple(dict.fromkeys(site.as_data for site in sites if site is not None))


def change_in_words(change: InPlaceChange, name_of: NameOf) -> str:
    """Return what changes a tensor, in a sentence."""
    site = change.site
    if site is not None and site.layer is not None and has_inplace(site):
        return f"{name_of(site.layer)} (`{type(site.layer).__name__}(inplace=True)`)"
    if change.operator.startswith(RENORM):
        return "the `max_norm` of an embedding"
    return f"`{operator_name(change)}`"


def _later_changes(saved: SavedTensor, first: InPlaceChange) -> list[str]:
    """A sentence about changes in other lines after the first one."""
    others = [one.site for one in saved.changes if one.site is not None]
    places = dict.fromkeys(site.where for site in others)
    if first.site is not None:
        places.pop(first.site.where, None)
    if not places:
        return []
    return [f"It was changed in place again in {', '.join(list(places)[:_MOST_PLACES])}."]


def place_of(site: CallSite, name_of: NameOf) -> str:
    """Return a line and its function: ``net.py:44 (fpn.forward)``."""
    if site.owner is not None:
        return f"{site.where} ({name_of(site.owner)}.{site.function})"
    return site.where if site.function == "<module>" else f"{site.where} ({site.function})"


def _saving(saved: SavedTensor, name_of: NameOf) -> str:
    site = saved.site
    if site is None:
        return "An operation saved a tensor for the backward pass."
    subject, role = f"`{site.text}`", "result" if saved.role == RESULT else "input"
    if site.layer is not None and site.layer is not site.owner:
        subject, role = name_of(site.layer), saved.role
        if name := saved.parameter_of(site.layer):
            role = name
    return f"{subject} saved its {role} for the backward pass ({site.where})."
