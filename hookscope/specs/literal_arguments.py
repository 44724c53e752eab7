"""Literal arguments in the spec of a model, as in ``nets.py:Net(5, act="relu")``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookscope.errors import ModelError, RequestError

if TYPE_CHECKING:
    import ast

_NAME = r"[^\W\d]\w*"
# A call follows the name of a model of torchvision, of timm, of a file or of a module. No other
# name of a file that ends with a parenthesis is read as a call.
_CALL = re.compile(
    rf"(?P<spec>{_NAME}|timm:[\w.-]+|.+?\.py:{_NAME}|{_NAME}(?:\.{_NAME})*:{_NAME})"
    r"(?P<call>\(.*\))",
    re.DOTALL,
)
_KINDS = "Numbers, quoted texts, True, False, None, lists, tuples, dicts and sets are literals."


class LiteralArguments(NamedTuple):
    """The arguments of a call: those by position, and those by name as pairs."""

    positional: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


def split_call(text: str) -> tuple[str, str]:
    """Return the spec of a model without its arguments, and the arguments in their parentheses.

    >>> split_call("nets.py:Net(5)"), split_call("resnet18"), split_call("models (copy)")
    (('nets.py:Net', '(5)'), ('resnet18', ''), ('models (copy)', ''))
    """
    call = _CALL.fullmatch(text)
    return (call["spec"], call["call"]) if call else (text, "")


def parse_arguments(spec: str, call: str) -> LiteralArguments:
    """Parse the arguments that follow a spec.

    >>> parse_arguments("nets.py:Net", "(5, act='relu')")
    LiteralArguments(positional=(5,), keywords=(('act', 'relu'),))
    """
    import ast  # takes 10 ms, for a few specs

    try:
        node = ast.parse(f"_{call}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        node = None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ModelError(
            f"The arguments in {spec + call!r} cannot be read as those of a Python call.",
            f"Write them as in {spec}(5) or {spec}(width=16), in quotes for the shell.",
        )
    keywords: dict[str, Any] = {}
    for word in node.keywords:
        if word.arg is None or word.arg in keywords:
            raise ModelError(
                f"The arguments in {spec + call!r} contain "
                + (f"{word.arg} twice." if word.arg else "a dict with **."),
                "Give each argument once, by its name.",
            )
        keywords[word.arg] = _literal(spec, call, word.value, f"--model-arg {word.arg}=")
    positional = tuple(_literal(spec, call, argument) for argument in node.args)
    return LiteralArguments(positional, tuple(keywords.items()))


def _literal(spec: str, call: str, node: ast.expr, option: str = "") -> Any:
    """The value of an argument; ``option`` sets it to a text without quotes."""
    import ast

    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        written = ast.unparse(node)
    quoted = (
        f" For a text, write quotes or {option}{written}." if isinstance(node, ast.Name) else ""
    )
    raise ModelError(
        f"The argument {written} in {spec + call!r} is not a literal value. It is not evaluated.",
        f"{_KINDS}{quoted if option else ''} For any other value, name a function that builds the"
        " model.",
    )


def join_arguments(
    spec: str, written: LiteralArguments, model_args: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the keyword arguments of a spec and of ``--model-arg`` together.

    >>> join_arguments("Net(width=8)", LiteralArguments((), (("width", 8),)), {"depth": 2})
    {'width': 8, 'depth': 2}
    """
    keywords = dict(written.keywords)
    for name in model_args or {}:
        if name in keywords:
            raise RequestError(
                f"{name!r} is given in {spec!r} and with --model-arg.", "Give it once."
            )
    return keywords | dict(model_args or {})
