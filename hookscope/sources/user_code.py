"""Running a user's own Python file, and the functions in it, as ``python FILE.py`` would."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hookscope.errors import ModelError, RequestError
from hookscope.sources.arguments import convert_arguments, format_arguments
from hookscope.specs.model_spec import FunctionSpec, end_sentence
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.interrupts import signal_safe_contextmanager

T = TypeVar("T")

_OURS = (__file__, importlib.__file__)  # files that stand in the traceback of every module


def run_file(path: str) -> ModuleType:
    """Run the file ``path`` afresh and return it as a module.

    Raises:
        ModelError: it raised, or cannot be read; names the file and the line.
    """
    name = f"hookscope_file_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, Path(path).resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    loader = spec.loader
    run_user_code(path, lambda: loader.exec_module(module))
    return module


def import_user_module(name: str) -> ModuleType:
    """Import the module ``name`` from the current folder or where Python looks.

    Raises:
        ModelError: there is none of that name, or it raised; names the line.
    """
    return run_user_code(name, lambda: importlib.import_module(name))


def run_user_code(path: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, run as part of the file ``path``, or of a module of that name.

    Raises:
        ModelError: it raised; names the file, the line and what was raised.
    """
    with _beside(Path(path).resolve().parent):
        try:
            return call()
        except (Exception, SystemExit) as exc:
            where = _where(exc, Path(path).resolve())
            said = f"{type(exc).__name__}: {exc}".rstrip(": ")
            raise ModelError(f"{path}{where} raised {said}", _repair(exc)) from exc


@signal_safe_contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let imports find the files in ``folder``; put things back afterwards.

    What was imported from there is then forgotten, so that the next file does not get the helpers
    of this one because they bear the same names. Prints go to stderr, as stdout is for results.
    """
    before = set(sys.modules)
    write_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # reading a user's folder leaves no trace in it
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.dont_write_bytecode = write_bytecode
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        new = [name for name in sys.modules if name.partition(".")[0] not in before]
        for name in [name for name in new if _lies_in(folder, name.partition(".")[0])]:
            sys.modules.pop(name)


def _lies_in(folder: Path, name: str) -> bool:
    module = sys.modules.get(name)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return any(place and Path(place).parent == folder for place in places)


def _where(exc: BaseException, path: Path) -> str:
    if isinstance(exc, SyntaxError) and exc.filename:
        same = Path(exc.filename) == path
        return f", line {exc.lineno}," if same else f": {exc.filename}, line {exc.lineno},"
    frames = traceback.extract_tb(exc.__traceback__)
    if not path.is_file():  # a module, whose file is known by what ran of it
        ran = [f for f in frames if not f.filename.startswith("<") and f.filename not in _OURS]
        return f": {ran[-1].filename}, line {ran[-1].lineno}," if ran else ""
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return f", line {lines[-1]}," if lines else ""


def _repair(exc: BaseException) -> str:
    if isinstance(exc, ModuleNotFoundError):
        return f"Install {exc.name!r}, or run from where it is installed."
    if isinstance(exc, ImportError):
        return "Imports work as for: python FILE.py"
    return "HOOKSCOPE_DEBUG=1 shows the whole traceback."


def load_functions(words: list[FunctionSpec]) -> list[Callable[..., Any]]:
    """Return the function of each word; functions of one file share one run of it.

    Raises:
        ModelError: a file or module raised when it was run; names the line.
        RequestError: it has no function of that name.
    """
    homes: dict[str, ModuleType] = {}
    for word in words:
        if word.home not in homes:
            homes[word.home] = load_user_module(word)
    return [_find(homes[word.home], word) for word in words]


def load_user_module(word: FunctionSpec) -> ModuleType:
    """Run the file, or import the module, that a word names.

    Raises:
        ModelError: it raised; names the line.
    """
    return run_file(word.home) if word.in_file else import_user_module(word.home)


def bind_arguments(
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
        own = convert_arguments(function, own)
        _check_callable(function, call, own)
        made.append(partial(function, **own) if own else function)
    return made


def function_name(function: Callable[..., Any]) -> str:
    """What to call a function that came without a word."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


def function_file(function: Callable[..., Any]) -> str:
    """The file that a function was written in; empty for one that is not written in Python."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - its code is wanted
    code = getattr(function, "__code__", None)
    return str(code.co_filename) if code else ""


def _find(home: ModuleType, word: FunctionSpec) -> Callable[..., Any]:
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


def _check_callable(
    function: Callable[..., Any], call: tuple[str, ...], own: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*call, **own)
    except TypeError as error:
        name = function_name(function)
        with_ = f" and {format_arguments(own)}" if own else ""
        raise RequestError(
            f"The hook {name} cannot be called with {', '.join(call)}{with_}: {end_sentence(str(error))}",
            f"It is {name}{signature}; --hook-kind chooses what it is called with, and"
            " --hook-arg KEY=VALUE fills its further parameters.",
        ) from None
