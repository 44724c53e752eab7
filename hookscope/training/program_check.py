"""Checks that a program exists before it is run, without importing anything of it."""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import ModuleSpec

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.training.script_runner import Program, has_safe_path, path_importer


def check_program(program: Program) -> None:
    """Raise RequestError if there is no such program.

    A module inside a package is not looked up, because that would import the package.
    """
    if program.is_module:
        _check_module(program.name)
    elif not program.is_file and (importer := path_importer(program.name)) is not None:
        if importer.find_spec("__main__") is None:
            kind = "folder" if os.path.isdir(program.name) else "archive"
            raise RequestError(
                f"The {kind} {program.name} has no __main__.py, so there is nothing to run.",
                "Name a script in it, or a package with -m.",
            )
    elif not program.is_stdin:
        _check_file(program.name)


def _check_file(name: str) -> None:
    folder = os.path.dirname(name)
    if not os.path.exists(name):
        try:
            beside = sorted(os.listdir(folder or os.curdir))
        except OSError:
            raise RequestError(
                f"There is no script {name}: the folder {folder} cannot be read.",
                f"The working folder is {os.getcwd()}.",
            ) from None
        scripts = [entry for entry in beside if entry.endswith((".py", ".pyz"))]
        near = did_you_mean(os.path.basename(name), scripts)
        if re.fullmatch(r"python[\d.]*", name):
            hint = "Begin with the script, without python: hookscope run SCRIPT."
            raise RequestError(f"There is no script {name}.", hint)
        is_module = not folder and _find(name.partition(".")[0]) is not None
        hint = f"For the module {name} write: hookscope run -m {name}" * is_module
        raise RequestError(
            f"There is no script {name}.",
            near or hint or f"The working folder is {os.getcwd()}.",
        )
    try:
        if os.path.isfile(name):  # to open a pipe and close it would end the one who writes to it
            with open(name, "rb"):
                pass
    except OSError as error:
        raise RequestError(
            f"The script {name} cannot be read: {error.strerror}.",
            "Check its permissions.",
        ) from error


def _check_module(name: str) -> None:
    top = name.partition(".")[0]
    if name.endswith(".py") and os.path.exists(name):
        raise RequestError(f"{name} is a file, and -m takes the name of a module.", "Leave out -m.")
    if not all(part.isidentifier() for part in name.split(".")):
        raise RequestError(
            f"{name!r} is not the name of a module.",
            "Write a dotted name after -m, such as mypackage.train.",
        )
    if _find(top) is None:
        entries = [] if has_safe_path() else sorted(os.listdir())
        near = did_you_mean(top, [os.path.splitext(entry)[0] for entry in entries])
        raise RequestError(
            f"There is no module {top}.",
            near or "It must be installed, or be in the working folder or in PYTHONPATH.",
        )


def _find(top: str) -> ModuleSpec | None:
    """Find a module as the program would, with the working folder in front of ``sys.path``."""
    if not has_safe_path() and (importer := path_importer(os.getcwd())) is not None:
        spec: ModuleSpec | None = importer.find_spec(top)
        if spec is not None:
            return spec
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec is not None:
            return spec
    return None
