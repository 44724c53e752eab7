"""Calls a function once a module has been imported, by whomever and whenever."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hookscope.errors import HookscopeError

_reported: set[str] = set()


def report_fault(failed: str, error: BaseException) -> None:
    """Print one line on standard error about a fault; a second one of the same kind is silent.

    With ``HOOKSCOPE_DEBUG=1`` the traceback follows.
    """
    if failed in _reported:
        return
    _reported.add(failed)
    is_ours = isinstance(error, HookscopeError)  # a sentence, which names the cause itself
    cause = " ".join((str(error) if is_ours else f"{type(error).__name__}: {error}").split())
    text = f"hookscope: {failed}. {cause.rstrip('.')}. The script continues.\n"
    if os.environ.get("HOOKSCOPE_DEBUG", "0") not in ("", "0"):
        import traceback

        text += "".join(traceback.format_exception(error))
    _write(text)


def say(sentence: str) -> None:
    """Print a line on standard error; not through ``logging``, which belongs to the script."""
    _write(f"hookscope: {sentence}\n")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        pass


def call_after_import(module_name: str, function: Callable[[], object]) -> None:
    """Call ``function`` once, when ``module_name`` has been imported completely.

    That is at once if it has been imported already, and otherwise in the thread that imports it,
    before its ``import`` statement ends. An import that fails does not count. A process forked
    before the import does not call it. An exception of ``function`` is reported on standard error
    and goes no further.

    Example:
        >>> import colorsys
        >>> call_after_import("colorsys", lambda: print("imported"))
        imported
    """
    if module_name in sys.modules:
        # Another thread may be amid the import; this waits for its end.
        importlib.import_module(module_name)
        _call(module_name, function)
        return
    finder = _Finder(module_name, function)
    sys.meta_path.insert(0, finder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=finder.withdraw)


def _call(module_name: str, function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:
        report_fault(f"nothing is watched after the import of {module_name}", error)


class _Finder:
    """A meta path finder for one module, which it lets the others find.

    The loader that they find stays in the module's spec, with its type. Only its method
    ``exec_module`` is replaced, in the instance and until the module has been executed.
    """

    def __init__(self, module_name: str, function: Callable[[], object]) -> None:
        self._name = module_name
        self._function = function
        self._searching = threading.local()
        self._lock = threading.Lock()
        self._done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the finders behind this one return, with its loader watched."""
        if name != self._name or self._done or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            spec = _find_spec(self, name, path, target)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            try:
                self._watch(spec.loader)
            except Exception as error:
                report_fault(f"the import of {name} cannot be watched", error)
        return spec

    def withdraw(self) -> None:
        """Call nothing from now on, and find nothing."""
        self._done = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _watch(self, loader: Any) -> None:
        if isinstance(loader, type):
            raise TypeError(f"{loader.__name__} loads all modules of its kind")
        # Another finder of ours may have replaced it, or this one, if it was asked twice.
        before = vars(loader).get("exec_module")
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != self._name:  # one loader may serve a whole archive
                execute(module)
                return
            if before is None:
                del loader.exec_module
            else:
                loader.exec_module = before
            execute(module)
            self._fire()

        loader.exec_module = exec_module

    def _fire(self) -> None:
        with self._lock:
            if self._done:
                return
            self.withdraw()
        _call(self._name, self._function)


def _find_spec(
    own: _Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Ask the finders behind ``own``, as the import system would."""
    finders = list(sys.meta_path)
    behind = finders[finders.index(own) + 1 :] if own in finders else finders
    for finder in behind:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None
