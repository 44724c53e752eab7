"""A user's Python file or module, run as ``python FILE.py`` would, and the functions in it."""

from __future__ import annotations

import ast
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
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.signatures import signature_of
from hookscope.files.suggestions import did_you_mean
from hookscope.sources.arguments import convert_arguments, format_arguments
from hookscope.specs.model_spec import FunctionSpec, end_sentence

T = TypeVar("T")

_running: set[str] = set()  # paths whose code is running
_OUR_FILES = (__file__, importlib.__file__)  # which are in the traceback of every module


def run_file(path: str) -> ModuleType:
    """Run the file ``path`` and return it as a new module."""
    name = f"hookscope_file_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, Path(path).resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    loader = spec.loader
    run_user_code(path, lambda: loader.exec_module(module))
    return module


def import_user_module(name: str) -> ModuleType:
    """Import the module ``name`` from the current folder or ``sys.path``."""
    return run_user_code(name, lambda: importlib.import_module(name))


def run_user_code(path: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, run as code of ``path``. A nested call prepares no imports."""
    if path not in _running:
        with _importing_from(path):
            return run_user_code(path, call)
    try:
        return call()
    except (Exception, SystemExit) as exc:
        where = _where(exc, Path(path).resolve())
        text = exc.msg if isinstance(exc, SyntaxError) else exc
        error = f"{type(exc).__name__}: {text}".rstrip(": ")
        raise ModelError(f"{path}{where} raised {error}", _hint(exc, path)) from exc


@signal_safe_contextmanager
def _importing_from(path: str) -> Iterator[None]:
    """Let imports find the files beside ``path`` until the block ends; prints go to stderr."""
    folder = Path(path).resolve().parent
    before = set(sys.modules)
    write_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # no __pycache__ in the user's folder
    _running.add(path)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _running.discard(path)
        sys.dont_write_bytecode = write_bytecode
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        # A walk in Python through the names of all modules takes longer than to read many an item.
        added = sys.modules.keys() - before
        new = [name for name in added if name.partition(".")[0] not in before]
        # The next file may have other helpers of the same names.
        for name in [name for name in new if _is_in(folder, name.partition(".")[0])]:
            sys.modules.pop(name)


def _is_in(folder: Path, name: str) -> bool:
    module = sys.modules.get(name)
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return any(path and Path(path).parent == folder for path in paths)


def _where(exc: BaseException, path: Path) -> str:
    if isinstance(exc, SyntaxError) and exc.filename:
        same = Path(exc.filename) == path
        return f", line {exc.lineno}," if same else f": {exc.filename}, line {exc.lineno},"
    frames = traceback.extract_tb(exc.__traceback__)
    if not path.is_file():  # a module: its file is in the last frame
        ran = [f for f in frames if not f.filename.startswith("<") and f.filename not in _OUR_FILES]
        return f": {ran[-1].filename}, line {ran[-1].lineno}," if ran else ""
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return f", line {lines[-1]}," if lines else ""


def _hint(exc: BaseException, path: str) -> str:
    if isinstance(exc, ModuleNotFoundError):
        return f"Install {exc.name!r}, or run hookscope where it can be imported."
    if isinstance(exc, ImportError):
        return _relative_import_hint(path) or "Imports work as in: python FILE.py"
    if isinstance(exc, SyntaxError) and exc.text and exc.text.strip():
        return f"Check this line and the one before it: {exc.text.strip()}"
    return "HOOKSCOPE_DEBUG=1 shows the whole traceback."


def _relative_import_hint(path: str) -> str:
    """How to name a file that has relative imports; empty if it has none."""
    file = Path(path).resolve()
    if not file.is_file():
        return ""
    nodes = ast.walk(ast.parse(file.read_bytes()))
    levels = max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    if not levels:
        return ""
    # The folders that the imports need, and those around them that are marked as packages.
    folder, names = file.parent, [file.stem]
    while folder.name and (len(names) <= levels or (folder / "__init__.py").is_file()):
        names.insert(0, folder.name)
        folder = folder.parent
    module = ".".join(names) if all(map(str.isidentifier, names)) else "package.module"
    where = "" if folder == Path.cwd() else f", and run hookscope in {str(folder)!r}"
    return (
        f"It has relative imports, which need its package: write {module}:NAME instead of"
        f" {path}:NAME{where}."
    )


def load_functions(specs: list[FunctionSpec]) -> list[Callable[..., Any]]:
    """Return the function of each spec; a file is run once for all its functions."""
    modules: dict[str, ModuleType] = {}
    for spec in specs:
        if spec.home not in modules:
            modules[spec.home] = load_user_module(spec)
    return [_find(modules[spec.home], spec) for spec in specs]


def load_user_module(spec: FunctionSpec) -> ModuleType:
    """Run the file, or import the module, of a function spec."""
    return run_file(spec.home) if spec.in_file else import_user_module(spec.home)


def bind_arguments(
    functions: list[Callable[..., Any]], values: Mapping[str, Any], calls: list[tuple[str, ...]]
) -> list[Callable[..., Any]]:
    """Return the functions with each of ``values`` bound in those that have a parameter for it."""
    parameters = [_parameters(function) for function in functions]
    keywords = [{k: v for k, v in values.items() if k in names} for names in parameters]
    for key in values:
        if not any(key in own for own in keywords):
            names = [name for own in parameters for name in own]
            raise RequestError(
                f"No hook has a parameter {key!r}.",
                did_you_mean(key, names) or "Give --hook-arg for a parameter of a hook's function.",
            )
    bound = []
    for function, own, call in zip(functions, keywords, calls, strict=True):
        own = convert_arguments(function, own)
        _check_callable(function, call, own)
        bound.append(partial(function, **own) if own else function)
    return bound


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


def function_file(function: Callable[..., Any]) -> str:
    """Return the file of a function's code; empty if it is not written in Python."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - for its code
    code = getattr(function, "__code__", None)
    return str(code.co_filename) if code else ""


def _find(module: ModuleType, spec: FunctionSpec) -> Callable[..., Any]:
    value: Any = vars(module).get(spec.name)
    if inspect.isclass(value) or not callable(value):
        what = "a class" if inspect.isclass(value) else "not a function"
        functions = [
            name
            for name, member in vars(module).items()
            if inspect.isfunction(member) and member.__module__ == module.__name__
        ]
        offers = f"Choose from {', '.join(functions)}." if functions else "It defines no function."
        if spec.name in vars(module):
            raise RequestError(f"{spec.name} in {spec.home} is {what}.", offers)
        near = did_you_mean(spec.name, functions)
        raise RequestError(
            f"{spec.home} has no function {spec.name!r}.", f"{near} {offers}".strip()
        )
    function: Callable[..., Any] = value
    return function


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(signature_of(function).parameters)
    except ValueError:  # written in C, without a signature
        return []


def _check_callable(
    function: Callable[..., Any], call: tuple[str, ...], own: Mapping[str, Any]
) -> None:
    try:
        signature = signature_of(function)
    except ValueError:
        return
    try:
        signature.bind(*call, **own)
    except TypeError as error:
        name = function_name(function)
        with_ = f" and {format_arguments(own)}" if own else ""
        raise RequestError(
            f"The hook {name} cannot be called with {', '.join(call)}{with_}:"
            f" {end_sentence(str(error))}",
            f"Its signature is {name}{signature}. --hook-kind sets what it is called with, and"
            " --hook-arg KEY=VALUE adds further arguments.",
        ) from None
