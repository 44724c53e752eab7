"""Errors of DistributedDataParallel: parameters without a gradient, or with two in one step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from traceback import walk_tb

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookscope.execution.backward_failures.code_sites import CallSite, site_of_error
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of, place_of
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.backward_failures.reduction_watch import ReductionWatch, WatchedCall
from hookscope.files.frame_variables import variables_of
from hookscope.files.words import count_text, plural
from hookscope.results.failure import DDP

_WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ,]+)")
_TWICE = re.compile(r"Parameter at index (\d+)")
_MOST_NAMES = 6


def diagnose_reduction(error: BaseException, watch: ReductionWatch | None) -> Diagnosis | None:
    """Return which parameters had no gradient, or two, and why.

    Args:
        error: of DistributedDataParallel.
        watch: of the step, which has run again; None if it could not.
    """
    model = _model_in(error)
    if model is None:
        return None
    names = ModuleNames({module: name for name, module in model.module.named_modules()})
    if found := _TWICE.search(str(error)):
        order = _orders(model)[0]
        if int(found[1]) < len(order):
            return _diagnosis_of_two(order[int(found[1])], model, watch, names, error)
    unused = _unused(model, error, watch)
    return _diagnosis_of_none(unused, model, watch, names, error) if unused else None


def _model_in(error: BaseException) -> DistributedDataParallel | None:
    """The model of the innermost call in a traceback, or the only one that its variables have."""
    found: DistributedDataParallel | None = None
    for frame, _ in walk_tb(error.__traceback__):
        values = [*variables_of(frame).values(), *frame.f_globals.values()]
        models = [one for one in values if isinstance(one, DistributedDataParallel)]
        found = models[0] if models else found
    return found


def _orders(model: DistributedDataParallel) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters in the order of PyTorch's indices: those that require grad, and all."""
    ignored = set(model.parameters_to_ignore)
    named = model.module.named_parameters()
    parameters: list[Tensor] = [one for name, one in named if name not in ignored]
    return [one for one in parameters if one.requires_grad], parameters


def _unused(
    model: DistributedDataParallel, error: BaseException, watch: ReductionWatch | None
) -> list[Tensor]:
    """The parameters that the error has as indices, or those that the step does not reach."""
    reached = _reached(watch)
    found = _WITHOUT.search(str(error))
    indices = [int(one) for one in re.findall(r"\d+", found[1])] if found else []
    fits: list[list[Tensor]] = []
    # A parameter that was frozen later has an index, one that was frozen before has none.
    for order in _orders(model):
        if indices and max(indices) < len(order):
            fits.append([order[index] for index in indices])
    matching = [one for one in fits if not reached & set(one)]
    if matching or fits:
        return (matching or fits)[0]
    unreached = [one for one in _orders(model)[0] if one not in reached]
    return unreached if watch is not None and watch.passes else []


def _reached(watch: ReductionWatch | None) -> set[Tensor]:
    passes = [] if watch is None else watch.passes
    return {one for each in passes for one in each.parameters}


def _diagnosis_of_none(
    unused: Sequence[Tensor],
    model: DistributedDataParallel,
    watch: ReductionWatch | None,
    names: ModuleNames,
    error: BaseException,
) -> Diagnosis:
    listed = [names.of_parameter(one) for one in unused]
    more = f" and {count_text(len(listed) - _MOST_NAMES)} more" * (len(listed) > _MOST_NAMES)
    story = [
        f"In the step before, {plural(len(unused), 'parameter')} got no gradient in this process:"
        f" {', '.join(listed[:_MOST_NAMES])}{more}."
    ]
    sites: list[CallSite | None] = []
    reasons: dict[str, None] = {}
    for parameter in unused:
        for owner in _owners(model, parameter):
            reason, site = _reason(parameter, owner, watch, names)
            reasons[reason] = None
            sites.append(site)
    story += [reason for reason in list(reasons)[:_MOST_NAMES] if reason]
    sites.append(site_of_error(error))
    return Diagnosis(
        DDP,
        tuple(story),
        lines_of(sites),
        (),
        tuple(_advice(unused)),
        watch is None or bool(watch.passes),
    )


def _owners(model: DistributedDataParallel, parameter: Tensor) -> Iterator[nn.Module]:
    """The modules that have a parameter."""
    for module in model.module.modules():
        if any(own is parameter for own in module._parameters.values()):
            yield module


def _reason(
    parameter: Tensor, owner: nn.Module, watch: ReductionWatch | None, names: ModuleNames
) -> tuple[str, CallSite | None]:
    """Why a parameter got no gradient, as a sentence, and the line; empty if it is not known."""
    name = names(owner)
    if not parameter.requires_grad:
        return f"{name} was frozen after DistributedDataParallel was made.", None
    if watch is None:
        return "", None
    if parameter in _reached(watch):
        return f"{name} got one when the step ran again: only some steps use it.", None
    calls = watch.calls.get(owner, [])
    if not calls:
        return f"{name} was not called.", None
    site = calls[0].site
    place = "" if site is None else f" in {place_of(site, names)}"
    if not any(call.with_grad for call in calls):
        return f"{name} was called{place}, with gradients disabled.", site
    if not watch.passes:
        return f"{name} was called{place}.", site
    return f"{name} was called{place}, but the loss does not depend on its output.", site


def _advice(unused: Sequence[Tensor]) -> Iterator[str]:
    if any(not one.requires_grad for one in unused):
        yield "freeze parameters before DistributedDataParallel is made."
    if any(one.requires_grad for one in unused):
        yield (
            "remove these modules, use them in the loss, or give DistributedDataParallel"
            " find_unused_parameters=True."
        )


def _diagnosis_of_two(
    parameter: Tensor,
    model: DistributedDataParallel,
    watch: ReductionWatch | None,
    names: ModuleNames,
    error: BaseException,
) -> Diagnosis:
    story = [f"{names.of_parameter(parameter)} got a gradient twice in one step."]
    sites: list[CallSite | None] = []
    advice = "call the model once for each backward pass, and use its parameters only in it."
    reaching = [one.site for one in watch.passes if parameter in one.parameters] if watch else []
    inside = _checkpointed(parameter, model, watch)
    if len(reaching) > 1:
        lines = [f"`{site.text}` ({site.where})" for site in reaching if site is not None]
        story.append(f"It got one in each of {' and '.join(lines)}.")
        sites += reaching
        advice = "add the losses and call backward() once."
    elif inside:
        lines = [place_of(call.checkpoint, names) for call in inside if call.checkpoint]
        where = ", ".join(dict.fromkeys(lines))
        story.append(f"It is used in a reentrant checkpoint ({where}), a backward pass of its own.")
        sites += [call.checkpoint for call in inside]
        advice = "give checkpoint() use_reentrant=False."
    sites.append(site_of_error(error))
    return Diagnosis(DDP, tuple(story), lines_of(sites), (), (advice,))


def _checkpointed(
    parameter: Tensor, model: DistributedDataParallel, watch: ReductionWatch | None
) -> list[WatchedCall]:
    """The calls in reentrant checkpoints of modules that have a parameter."""
    calls = {} if watch is None else watch.calls
    owners = _owners(model, parameter)
    return [call for owner in owners for call in calls.get(owner, []) if call.checkpoint]
