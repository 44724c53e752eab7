"""What a failed backward pass says, with changes to try; and the search for one that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from hookscope.execution.backward_failures.code_sites import CallSite
from hookscope.execution.backward_failures.detached_variables import detached_in_loop
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
    moved_after,
    operator_name,
    replacements,
)
from hookscope.execution.backward_failures.source_patches import SourcePatch
from hookscope.results.failure import IN_PLACE, NAN, BackwardFailure, CodeLine

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
    is_complete: bool = True  # else more may be known if more of the program runs again


# Runs the pass with changes; None if it succeeds, else the diagnosis of its failure. It raises
# TimeoutError if the time for all trials is over.
Trial = Callable[[Sequence[SourcePatch]], Diagnosis | None]


def tried_failure(diagnosis: Diagnosis, trial: Trial) -> BackwardFailure:
    """Return a diagnosis with the changes that were tried and helped."""
    tried: tuple[str, ...] = ()
    patches, note = list[SourcePatch](), ""
    try:
        patches = _helping(diagnosis, trial)
    except TimeoutError:
        note = "Not all changes were tried, because time ran out."
    if patches:
        words = " and ".join(patch.words for patch in patches)
        outcome = "all gradients are finite" if diagnosis.kind == NAN else "the backward pass runs"
        tried = (f"{words}, {outcome}.",)
    return BackwardFailure(
        diagnosis.kind,
        diagnosis.story,
        diagnosis.lines,
        tried,
        () if tried else diagnosis.suggestions,
        note,
    )


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
    backward = None if observer.broken_in is None else observer.broken_in.site
    sites += [change.site, backward]
    story.append(_overwriting(change, backward, name_of))
    story += _later_changes(saved, change)
    candidates = tuple(_candidates(saved, change, backward))
    return Diagnosis(IN_PLACE, tuple(story), lines_of(sites), candidates, (_advice(saved, change),))


def _candidates(
    saved: SavedTensor, change: InPlaceChange, backward: CallSite | None
) -> Iterator[SourcePatch]:
    """Changes with which the saved tensor may stay as it was, the best first."""
    if not saved.is_weight:  # another tensor in its place would leave the weight as it was
        yield from replacements(change)
    if change.site is not None and backward is not None:
        moved = moved_after(change.site, backward)
        yield from [] if moved is None else [moved]
        if change.site.is_optimizer:  # the graph may be of a step before
            yield from detached_in_loop(backward)
    if saved.role == INPUT and saved.site is not None:
        yield from cloned_arguments(saved.site)


def _advice(saved: SavedTensor, change: InPlaceChange) -> str:
    site = change.site
    if site is not None and site.is_optimizer:
        return (
            "compute the loss again after the step of the optimizer, step later, or detach() what"
            " is kept from the step before."
        )
    if saved.is_weight:
        return "change the weight after the backward pass, or compute the loss after the change."
    return "let the operator return a new tensor, or clone the tensor before it is changed."


def lines_of(sites: Iterable[CallSite | None]) -> tuple[CodeLine, ...]:
    """Return the lines of sites as plain data, each once."""
    return tuple(dict.fromkeys(site.as_data for site in sites if site is not None))


def _overwriting(change: InPlaceChange, backward: CallSite | None, name_of: NameOf) -> str:
    """The sentence that says what changed a tensor."""
    site, by = change.site, f"`{operator_name(change)}`"
    if site is not None and site.layer is not None and has_inplace(site):
        by = f"{name_of(site.layer)} (`{type(site.layer).__name__}(inplace=True)`)"
    elif change.operator.startswith("aten::embedding_renorm_"):
        by = "the `max_norm` of an embedding"
    place = "" if site is None else f" in {place_of(site, name_of)}"
    when = " in a backward pass" if change.in_backward else " before backward"
    beside = site is not None and backward is not None and site.is_beside(backward)
    if beside and backward is not None and not change.in_backward:
        when = f", before `{backward.text}` in line {backward.line}"
    return f"It was overwritten by {by}{place}{when}."


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
