"""Runs a script in this process as ``python SCRIPT`` would run it in its own.

Whatever ends it (the last line, ``SystemExit``, an exception, Ctrl-C) passes through to the
interpreter. Only the traceback is cut: it begins where that of ``python`` begins. What remains
different: the frames of hookscope below the script, which ``inspect.stack()`` shows and which count
towards the recursion limit; and the modules that hookscope has imported, which the script's own
modules of the same names replace, but not inside modules that were imported with them.
"""

from __future__ import annotations

import builtins
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import (
    BuiltinImporter,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import MAGIC_NUMBER
from itertools import pairwise
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

# What every interpreter imports before its script, so that no file beside the script replaces it.
_AT_START = frozenset(
    (
        *("__main__", "_abc", "_codecs", "_collections_abc", "_frozen_importlib", "_imp", "_io"),
        *("_frozen_importlib_external", "_signal", "_sitebuiltins", "_stat", "_thread", "abc"),
        *("_warnings", "_weakref", "builtins", "codecs", "encodings", "genericpath", "io", "nt"),
        *("marshal", "ntpath", "os", "posix", "posixpath", "site", "sitecustomize", "stat", "sys"),
        *("time", "usercustomize", "winreg", "zipimport"),
    )
)
_PYC_HEADER = 16  # bytes before the code

_own_main: list[ModuleType] = []  # lives on, as do the functions that it defines


@dataclass(frozen=True)
class Program:
    """A Python program and its arguments."""

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    on_end: Callable[[BaseException | None], None] = field(
        default=lambda error: None, compare=False, repr=False
    )

    @property
    def title(self) -> str:
        """The name without folders, packages and suffix."""
        if self.is_module:
            return self.name.removesuffix(".__main__").rpartition(".")[2]
        if self.is_stdin:
            return "stdin"
        return os.path.splitext(os.path.basename(os.path.abspath(self.name)))[0]

    @property
    def is_stdin(self) -> bool:
        """Whether the script is read from the standard input."""
        return self.name == "-" and not self.is_module

    @property
    def is_file(self) -> bool:
        """Whether it is a script, rather than a module, a folder or an archive."""
        return self.is_stdin or (not self.is_module and path_importer(self.name) is None)

    def run(self) -> None:
        """Run the program. To be called once in a process, where no caller handles exceptions."""
        is_file = self.is_file
        main = _new_main()
        if is_file:
            code, loader = self._read_code()
            if not self.is_stdin:
                main.__loader__ = loader("__main__", self.path)
            vars(main).update(__file__=self.path, __cached__=None)
        _replace_main(main)
        self._set_arguments_and_path()
        try:
            if is_file:
                exec(code, main.__dict__)
            else:
                # What `python -m` calls. Its frames are in the traceback of Python, too.
                import runpy

                run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
                run_module(self.name if self.is_module else "__main__", self.is_module)
        except BaseException as error:
            self.on_end(error)
            if is_file:
                _flush()
            if not isinstance(error, SystemExit):
                _cut_traceback(error, main if is_file else None)
            raise
        self.on_end(None)
        if is_file:
            _flush()
            _forget_file(main)

    @property
    def path(self) -> str:
        """The file as an absolute path, with the ``./`` that Python leaves in it."""
        if self.is_stdin:
            return "<stdin>"
        if os.name == "nt":
            return os.path.abspath(self.name)
        return os.path.join(os.getcwd(), self.name)

    def _read_code(self) -> tuple[CodeType, type[SourceFileLoader] | type[SourcelessFileLoader]]:
        """Return the code of a script, and the kind of loader that Python names for it."""
        with open(0 if self.is_stdin else self.name, "rb", closefd=not self.is_stdin) as file:
            source = file.read()
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        if self.name.endswith(".pyc") or source.startswith(MAGIC_NUMBER):
            import marshal

            return marshal.loads(source[_PYC_HEADER:]), SourcelessFileLoader
        try:
            code = compile(source, self.path, "exec", dont_inherit=True)
            return code, SourceFileLoader
        except Exception as error:
            if self.is_stdin or not is_regular:  # it cannot be read again
                _cut_traceback(error, None)
                raise
            # Nothing of the script has run. The message of Python for a file is not that of
            # compile() where its encoding or a null byte is wrong.
            _replace_by_python(self.name, self.args)

    def _set_arguments_and_path(self) -> None:
        sys.argv = ["-m" if self.is_module else self.name, *self.args]
        in_front, safe = self._first_on_path(), has_safe_path()
        if in_front is None:
            return
        if safe:
            sys.path.insert(0, in_front)
        else:
            sys.path[0] = in_front
        _forget_shadowed(in_front)

    def _first_on_path(self) -> str | None:
        """The entry that Python puts in front of ``sys.path``, or None."""
        if not self.is_module and not self.is_file:
            return self.path
        if has_safe_path():
            return None
        if self.is_module:
            return os.getcwd()
        return "" if self.is_stdin else _folder_of(self.name)


def _folder_of(script: str) -> str:
    """Return the folder of a script, as Python finds it; a pipe, as ``/dev/stdin``, has no path."""
    try:
        return os.path.dirname(os.path.realpath(script, strict=True))
    except OSError:
        with suppress(OSError, ValueError):
            target = os.readlink(script)
            if os.path.isabs(target):
                return os.path.dirname(target)
        return os.path.dirname(script)


def path_importer(path: str) -> Any:
    """Return a finder for the modules in a folder or archive; None for any other file."""
    for hook in sys.path_hooks:
        try:
            return hook(path)
        except ImportError:
            continue
    return None


def has_safe_path() -> bool:
    """Whether nothing is put in front of ``sys.path``: ``-P``, ``-I`` or PYTHONSAFEPATH."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _new_main() -> ModuleType:
    """Return a module with what Python defines in ``__main__`` before it runs anything."""
    main = ModuleType("__main__")
    main.__loader__ = BuiltinImporter
    if "__annotations__" in vars(sys.modules["__main__"]):  # in some versions of Python
        main.__annotations__ = {}
    vars(main)["__builtins__"] = builtins
    return main


def _replace_main(main: ModuleType) -> None:
    _own_main.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    # multiprocessing makes this second name when it is imported, which may have been before.
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main


def _forget_shadowed(folder: str) -> None:
    """Forget modules that the script finds in its own folder, such as a random.py beside it."""
    importer = path_importer(folder)
    if importer is None:
        return
    tops = {name.partition(".")[0] for name in sys.modules}
    for name in tops - _AT_START - set(sys.builtin_module_names) - {"hookscope"}:
        loaded: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
        found = importer.find_spec(name)
        # Without a loader it is a folder without __init__.py, which gives way to any module.
        if found is None or found.loader is None or loaded is None or not loaded.has_location:
            continue
        if found.origin != loaded.origin:
            for other in [key for key in sys.modules if key.split(".")[0] == name]:
                del sys.modules[other]


def _flush() -> None:
    """Flush as Python does at the end of a script, before threads and ``atexit``."""
    for name in ("stderr", "stdout"):
        try:
            getattr(sys, name).flush()
        except Exception:
            continue


def _forget_file(main: ModuleType) -> None:
    """Remove what Python removes from ``__main__`` when a script has ended."""
    for name in ("__file__", "__cached__"):
        main.__dict__.pop(name, None)


def _cut_traceback(error: BaseException, main: ModuleType | None) -> None:
    """Let the interpreter print ``error`` without the frames that follow on the way up."""
    assert error.__traceback__ is not None
    theirs = error.__traceback__.tb_next
    hook = vars(sys).get("excepthook")
    was_missing = "excepthook" not in vars(sys)

    def print_cut(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if was_missing:
            del sys.excepthook
        else:
            sys.excepthook = hook  # type: ignore[assignment]
        if value is error:
            trace = theirs
            _leave_out_hooks(error, set())
            value = value.with_traceback(_without_hooks(trace))
            sys.last_traceback = trace = value.__traceback__
        if was_missing:
            _write("sys.excepthook is missing\n")
            sys.__excepthook__(kind, value, trace)
        else:
            _call_hook(hook, kind, value, trace)
        if main is not None:
            _forget_file(main)

    sys.excepthook = print_cut


# Modules whose functions PyTorch calls as hooks while it runs the script. Others are called by a
# script that uses hookscope itself.
_HOOKS = ("hookscope.hooks.", "hookscope.training.", "hookscope.files.signal_safety")


def _without_hooks(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our hooks, and what they call, in which Ctrl-C may have come."""
    entries: list[TracebackType] = []
    is_ours = False
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if name.startswith("hookscope."):
            if not is_ours and not name.startswith(_HOOKS):
                entries.append(trace)
                break
            is_ours = True
        elif not name.startswith("torch."):
            is_ours = False
        if not is_ours:
            entries.append(trace)
        trace = trace.tb_next
    for entry, following in pairwise(entries):
        entry.tb_next = following
    if entries and trace is None:
        entries[-1].tb_next = None
    return entries[0] if entries else None


def _leave_out_hooks(error: BaseException | None, seen: set[int]) -> None:
    """Leave those frames out of the errors that are printed with ``error``."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    parts = getattr(error, "exceptions", ())  # of an exception group
    for other in (error.__cause__, error.__context__, *parts):
        if isinstance(other, BaseException):
            _leave_out_hooks(other, seen)
            other.__traceback__ = _without_hooks(other.__traceback__)


def _call_hook(
    hook: Any,
    kind: type[BaseException],
    value: BaseException,
    trace: TracebackType | None,
) -> None:
    """Call the script's ``sys.excepthook``; print what Python prints when it fails."""
    try:
        hook(kind, value, trace)
        return
    except SystemExit:
        raise
    except BaseException as error:
        second = error
    assert second.__traceback__ is not None
    second = second.with_traceback(second.__traceback__.tb_next)
    _write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(second), second, second.__traceback__)
    _write("\nOriginal exception was:\n")
    sys.__excepthook__(kind, value, trace)


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
    except Exception:
        return


def _replace_by_python(script: str, args: tuple[str, ...]) -> NoReturn:
    """Go on as ``python SCRIPT ARGS``, with the flags of this interpreter."""
    import subprocess

    flags: Callable[[], list[str]] = subprocess._args_from_interpreter_flags  # type: ignore[attr-defined]
    command = [sys.executable, *flags(), script, *args]
    if os.name == "nt":  # exec would return to the shell before the new process has ended
        sys.exit(subprocess.call(command))
    _flush()
    os.execv(command[0], command)
