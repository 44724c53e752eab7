"""A function from a user's Python file, or from a module that can be imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from hookscope.errors import RequestError
from hookscope.sources.arguments import settle, show
from hookscope.sources.userfile import import_anew, run_file
from hookscope.specs.model import FunctionWord, ended
from hookscope.specs.suggest import did_you_mean


def load_functions(words: list[FunctionWord]) -> list[Callable[..., Any]]:
    """Return the function of each word; functions of one file share one run of it.

    Raises:
        ModelError: a file or module raised when it was run; names the line.
        RequestError: it has no function of that name.
    """
    homes: dict[str, ModuleType] = {}
    for word in words:
        if word.home not in homes:
            homes[word.home] = load_home(word)
    return [_find(homes[word.home], word) for word in words]


def load_home(word: FunctionWord) -> ModuleType:
    """Run the file, or import the module, that a word names.

    Raises:
        ModelError: it raised; names the line.
    """
    return run_file(word.home) if word.in_file else import_anew(word.home)


def with_arguments(
    functions: list[Callable[..., Any]], given: Mapping[str, Any], calls: list[tuple[str, ...]]
) -> list[Callable[..., Any]]:
    """Return the functions with each of ``given`` bound in those that have a parameter for it.

    Args:
        functions: what is going to be called.
        given: values by name; those typed on a command line follow the parameters' annotations.
        calls: the names of what each function is going to be called with: ``module``, ``input``.

    Raises:
        RequestError: no function has the parameter, a value is not of its type, or a function
            cannot be called so.
    """
    wanted = [_pick(function, given) for function in functions]
    for key in given:
        if not any(key in own for own in wanted):
            names = [n for f in functions for n in _parameters(f)]
            raise RequestError(
                f"No hook has a parameter {key!r}.",
                did_you_mean(key, names) or "Give --hook-arg for a parameter of a hook's function.",
            )
    made = []
    for function, own, call in zip(functions, wanted, calls, strict=True):
        own = settle(function, own)
        _demand_callable(function, call, own)
        made.append(partial(function, **own) if own else function)
    return made


def name_of(function: Callable[..., Any]) -> str:
    """What to call a function that came without a word."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


def file_of(function: Callable[..., Any]) -> str:
    """The file that a function was written in; empty for one that is not written in Python."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - its code is wanted
    code = getattr(function, "__code__", None)
    return str(code.co_filename) if code else ""


def _find(home: ModuleType, word: FunctionWord) -> Callable[..., Any]:
    found: Any = vars(home).get(word.name)
    if inspect.isclass(found) or not callable(found):
        what = "a class" if inspect.isclass(found) else "not a function"
        functions = [
            name
            for name, value in vars(home).items()
            if inspect.isfunction(value) and value.__module__ == home.__name__
        ]
        offers = f"It offers {', '.join(functions)}." if functions else "It defines no function."
        if word.name in vars(home):
            raise RequestError(f"{word.name} in {word.home} is {what}.", offers)
        near = did_you_mean(word.name, functions)
        raise RequestError(
            f"{word.home} has no function {word.name!r}.", f"{near} {offers}".strip()
        )
    function: Callable[..., Any] = found
    return function


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # written in C, and silent about it
        return []


def _pick(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    names = _parameters(function)
    return {key: value for key, value in given.items() if key in names}


def _demand_callable(
    function: Callable[..., Any], call: tuple[str, ...], own: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*call, **own)
    except TypeError as error:
        name = name_of(function)
        with_ = f" and {show(own)}" if own else ""
        raise RequestError(
            f"The hook {name} cannot be called with {', '.join(call)}{with_}: {ended(str(error))}",
            f"It is {name}{signature}; --hook-kind chooses what it is called with, and"
            " --hook-arg KEY=VALUE fills its further parameters.",
        ) from None
