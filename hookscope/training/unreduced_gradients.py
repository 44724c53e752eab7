"""Errors of DistributedDataParallel: parameters without a gradient, or with two in one step.

The message has indices of parameters. Which lines use them is read in the code of the step.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from traceback import walk_tb

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookscope.execution.backward_failures.code_sites import CallSite, site_of_error
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of, place_of
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.files.frame_variables import variables_of
from hookscope.files.words import count_text, plural
from hookscope.results.failure import DDP
from hookscope.specs.module_names import ancestors
from hookscope.training.step_code import CodePart

_WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ,]+)")
_TWICE = re.compile(r"Parameter at index (\d+)")
_MOST_NAMES = 6


def diagnose_reduction(error: BaseException, parts: list[CodePart]) -> Diagnosis | None:
    """Return which parameters had no gradient, or two, and the lines that use them."""
    model = _model_in(error)
    if model is None:
        return None
    names = ModuleNames({module: name for name, module in model.module.named_modules()})
    if found := _TWICE.search(str(error)):
        order = _orders(model)[0]
        if int(found[1]) < len(order):
            return _diagnosis_of_two(order[int(found[1])], parts, names, error)
    unused = _unused(model, error)
    return _diagnosis_of_none(unused, model, parts, names, error) if unused else None


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


def _unused(model: DistributedDataParallel, error: BaseException) -> list[Tensor]:
    """The parameters that the error has as indices."""
    found = _WITHOUT.search(str(error))
    indices = [int(one) for one in re.findall(r"\d+", found[1])] if found else []
    trained, every = _orders(model)
    # A parameter that was frozen later has an index, one that was frozen before has none.
    frozen = {one for one in every if not one.requires_grad}
    fits = [
        [order[index] for index in indices]
        for order in (trained, every)
        if indices and max(indices) < len(order)
    ]
    with_frozen = [one for one in fits if frozen and frozen <= set(one)]
    return next(iter([*with_frozen, *fits]), [])


def _diagnosis_of_none(
    unused: Sequence[Tensor],
    model: DistributedDataParallel,
    parts: list[CodePart],
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
    for owner in dict.fromkeys(one for p in unused for one in _owners(model, p)):
        reason, site = _reason(owner, model.module, parts, names)
        reasons[reason] = None
        sites.append(site)
    story += list(reasons)[:_MOST_NAMES]
    sites.append(site_of_error(error))
    return Diagnosis(DDP, tuple(story), lines_of(sites), (), tuple(_advice(unused)))


def _owners(model: DistributedDataParallel, parameter: Tensor) -> Iterator[nn.Module]:
    """The modules that have a parameter."""
    for module in model.module.modules():
        if any(own is parameter for own in module._parameters.values()):
            yield module


def _reason(
    owner: nn.Module, model: nn.Module, parts: list[CodePart], names: ModuleNames
) -> tuple[str, CallSite | None]:
    """What the code says of a module whose parameters got no gradient, and its line."""
    name = names(owner)
    if not any(one.requires_grad for one in owner._parameters.values() if one is not None):
        return f"{name} was frozen after DistributedDataParallel was made.", None
    modules = dict(model.named_modules())
    for outer in (name, *sorted(ancestors(name), key=len, reverse=True)):
        site = _use_of(modules.get(outer), parts)
        if site is not None:
            used = f"{outer} is used in {place_of(site, names)}"
            return f"{used}: it was not called there, or the loss does not depend on it.", site
    return f"No line of the step was found that uses {name}.", None


def _use_of(module: nn.Module | None, parts: list[CodePart]) -> CallSite | None:
    """The first expression of the code that is a module."""
    for part in parts:
        for node in part.nodes if part.code.co_name != "__init__" else ():
            if not isinstance(node, ast.Attribute | ast.Subscript) or module is None:
                continue
            if isinstance(node.ctx, ast.Load) and any(x is module for x in part.values_of(node)):
                return part.site(node)
    return None


def _advice(unused: Sequence[Tensor]) -> Iterator[str]:
    if any(not one.requires_grad for one in unused):
        yield "freeze parameters before DistributedDataParallel is made."
    if any(one.requires_grad for one in unused):
        yield (
            "remove these modules, use them in the loss, or give DistributedDataParallel"
            " find_unused_parameters=True."
        )


def _diagnosis_of_two(
    parameter: Tensor, parts: list[CodePart], names: ModuleNames, error: BaseException
) -> Diagnosis:
    story = [f"{names.of_parameter(parameter)} got a gradient twice in one step."]
    advice = [
        "add the losses and call backward() once, and call the model once for each backward pass."
    ]
    checkpoints = list(_reentrant_checkpoints(parts))
    if checkpoints:
        lines = ", ".join(dict.fromkeys(place_of(one, names) for one in checkpoints))
        story.append(f"A reentrant checkpoint ({lines}) is a backward pass of its own.")
        advice = ["give checkpoint() use_reentrant=False."]
    second = site_of_error(error)
    if second is not None and not checkpoints:
        story.append(f"The second backward pass is `{second.text}` ({second.where}).")
    return Diagnosis(DDP, tuple(story), lines_of([*checkpoints, second]), (), tuple(advice))


def _reentrant_checkpoints(parts: list[CodePart]) -> Iterator[CallSite]:
    for part in parts:
        for node in part.nodes:
            if isinstance(node, ast.Call) and "checkpoint" in ast.unparse(node.func):
                given = [one.value for one in node.keywords if one.arg == "use_reentrant"]
                if any(isinstance(one, ast.Constant) and one.value for one in given):
                    yield part.site(node)
