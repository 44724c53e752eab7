"""Running a user's own Python file, and the functions in it, as ``python FILE.py`` would."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from hookscope.errors import ModelError
from hookscope.tensors.interrupts import restoring

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
    guarded(path, lambda: loader.exec_module(module))
    return module


def import_anew(name: str) -> ModuleType:
    """Import the module ``name`` from the current folder or where Python looks.

    Raises:
        ModelError: there is none of that name, or it raised; names the line.
    """
    return guarded(name, lambda: importlib.import_module(name))


def guarded(path: str, call: Callable[[], T]) -> T:
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


@restoring
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
