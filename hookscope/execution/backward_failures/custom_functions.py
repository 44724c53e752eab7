"""Gradients of a wrong shape or number that the ``backward`` of a custom function returned."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch.autograd.function import BackwardCFunction

from hookscope.execution.backward_failures.code_sites import CallSite, is_of_program
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    NameOf,
    lines_of,
    place_of,
)
from hookscope.execution.failures import frames
from hookscope.files.signatures import signature_of
from hookscope.files.words import plural, shape_text
from hookscope.results.failure import SHAPE, CodeLine

_SHAPE = re.compile(
    r"at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[(.*)\]"
)
_COUNT = re.compile(r"incorrect number of gradients \(expected (\d+), got (\d+)\)")
Shape = tuple[int, ...]


def diagnose_custom_function(
    error: BaseException, node: Any, site: CallSite | None, name_of: NameOf
) -> Diagnosis:
    """Return which function returned the gradient, for which argument, and what shape is right.

    Args:
        error: that PyTorch raised.
        node: the node of the function in the graph.
        site: the line that applied it.
        name_of: gives the names of modules.
    """
    function = type(node)._forward_cls
    names = _argument_names(function)
    story: list[str] = []
    suggestion = ""
    if found := _SHAPE.search(str(error)):
        index, got, wanted = int(found[1]), _shape(found[2]), _shape(found[3])
        position = _position(node, index)
        argument = names[position] if position < len(names) else f"argument {position + 1}"
        story.append(
            f"{_backward_of(function)} returned a gradient of {shape_text(got)} for the argument"
            f" `{argument}`, which has the shape {shape_text(wanted)}."
        )
        suggestion = _advice(argument, got, wanted)
    elif found := _COUNT.search(str(error)):
        story.append(
            f"{_backward_of(function)} returned {plural(int(found[2]), 'value')}, and `forward`"
            f" takes {plural(int(found[1]), 'argument')}: {', '.join(names)}."
        )
        suggestion = "return one for each argument of forward, None for those without a gradient."
    else:
        cause = str(error).partition("\n")[0].rstrip(".")
        story.append(f"{_backward_of(function)} returned something else than a tensor: {cause}.")
        suggestion = "return a tensor, or None, for each argument of forward."
    if site is not None:
        story.append(f"It was applied by `{site.text}` in {place_of(site, name_of)}.")
    lines = (_line_of(function), *lines_of([site]))
    return Diagnosis(SHAPE, tuple(story), lines, (), (suggestion,))


def failed_node(error: BaseException, nodes: Iterable[Any]) -> Any | None:
    """Return the first of the nodes, which have not ended, that may be the function's."""
    name = re.search(r"[Ff]unction (\S+) returned an in", str(error))
    for node in nodes:
        is_named = name is None or node.name() == name[1]
        is_custom = isinstance(node, BackwardCFunction) and is_of_program(_backward_code(node))
        if is_named and is_custom:
            return node
    return None


def _backward_code(node: Any) -> Any:
    return inspect.unwrap(type(node)._forward_cls.backward).__code__


def _argument_names(function: Any) -> list[str]:
    """The names of the arguments of ``forward``, without ``ctx``."""
    parameters = list(signature_of(function.forward).parameters)
    has_context = "setup_context" not in vars(function)
    return parameters[1:] if has_context else parameters


def _position(node: Any, index: int) -> int:
    """The position of an argument of ``forward``; PyTorch counts only tensors."""
    edges = node.next_functions[: index + 1]
    number = sum(one is not None for one, _ in edges)
    for position, is_needed in enumerate(node.needs_input_grad):
        number -= bool(is_needed)
        if is_needed and not number:
            return position
    return index


def _backward_of(function: Any) -> str:
    line = _line_of(function)
    return f"{function.__name__}.backward ({line.file}:{line.line})"


def _line_of(function: Any) -> CodeLine:
    """The line with the ``def`` of ``backward``."""
    code = inspect.unwrap(function.backward).__code__
    line = code.co_firstlineno
    while frames.source_line(code.co_filename, line).startswith("@"):
        line += 1
    source = frames.source_line(code.co_filename, line)
    return CodeLine(frames.short_path(code.co_filename), line, "backward", source)


def _shape(text: str) -> Shape:
    return tuple(int(size) for size in re.findall(r"\d+", text))


def _advice(argument: str, got: Sequence[int], wanted: Sequence[int]) -> str:
    """What may be wrong with a shape."""
    if len(got) > 1 and (*got[:-2], got[-1], got[-2]) == tuple(wanted):
        return "transpose it. Of `x @ w`, x gets `grad @ w.mT`, and w gets `x.mT @ grad`."
    if sorted(got) == sorted(wanted) and len(got) > 1:
        return "permute its dimensions back to those of the argument."
    if _count(got) == _count(wanted):
        return f"return it with `.reshape({argument}.shape)`."
    if len(got) <= len(wanted) and _expands(got, wanted):
        return f"return it with `.expand_as({argument})`, if each entry has the same gradient."
    return (
        f"return it in the shape of `{argument}`: `.sum_to_size({argument}.shape)` where forward"
        " has expanded it, else the gradients may be in another order than the arguments."
    )


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _expands(got: Sequence[int], wanted: Sequence[int]) -> bool:
    pairs = zip(reversed(got), reversed(wanted), strict=False)
    return all(size in (1, other) for size, other in pairs)
