"""The types of the public names: ``python -m tools.stubs`` writes ``hookscope/__init__.pyi``.

Editors and type checkers read that file, because the functions get their keywords from groups of
options when they are imported. With ``--check`` nothing is written, and the exit status is 1 when
the file is stale.
"""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hookscope
from hookscope.specs.settings import settings_of

FILE = Path(hookscope.__file__).with_suffix(".pyi")
# Where the names in annotations come from, if not from the module of the function or of its groups.
HOMES = {
    **dict.fromkeys(("Callable", "Iterable", "Mapping", "Sequence"), "collections.abc"),
    **dict.fromkeys(("Any", "Literal"), "typing"),
    "PathLike": "os",
    "nn": "torch",
    "Tensor": "torch",
}
MODULES = ("os", "torch")
_WORD = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")


def render() -> str:
    """Return the text of the file."""
    functions = {
        name: value
        for name in hookscope.__all__
        if inspect.isfunction(value := getattr(hookscope, name))
    }
    others = [
        f"from {hookscope._MODULES[name]} import {name} as {name}"
        for name in hookscope.__all__
        if name in hookscope._MODULES and name not in functions
    ]
    lines = [_function(name, function) for name, function in functions.items()]
    names = {word for line in lines for word in _WORD.findall(_annotations(line))}
    text = "\n".join(
        [
            '"""Types of the public names. Written by tools/stubs.py: run make docs."""',
            "",
            *sorted({*_imports(names, functions), *others}),
            "",
            f"__all__ = {hookscope.__all__!r}",
            "__version__: str",
            "",
            *lines,
        ]
    )
    return _formatted(text)


def _function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(default=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    for parameter in signature.parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            shown = f"{parameter.name}: {parameter.annotation}".replace("'", "")
            default = parameter.default
            plain = repr(default) if isinstance(default, str | int | float | bool | None) else "..."
            text = text.replace(shown, f"{shown} = {plain}", 1)
    return f"def {name}{text}: ..."


def _annotations(line: str) -> str:
    """A function without its name, the names of its parameters and their defaults."""
    line = re.sub(r"^def \w+", "", line)
    return re.sub(r"= ('[^']*'|[\w.]+)", "", re.sub(r"\w+:", "", line))


def _imports(names: set[str], functions: dict[str, Any]) -> Iterator[str]:
    for module in MODULES:
        if module in names:
            yield f"import {module}"
    spaces = [function.__globals__ for function in functions.values()]
    spaces += [vars(sys.modules[group.__module__]) for group in _groups()]
    for name in sorted(names - {*MODULES, *vars(builtins)}):
        if name in HOMES:
            yield f"from {HOMES[name]} import {name}"
            continue
        values = [space[name] for space in spaces if name in space]
        if not values:
            raise SystemExit(f"{name} is not known in the modules of the public functions")
        home = getattr(values[0], "__module__", "")
        if name not in vars(sys.modules.get(home, builtins)):  # an alias of a type
            home = next(
                module.__name__
                for module in list(sys.modules.values())
                if module.__name__.startswith("hookscope.specs") and name in vars(module)
            )
        yield f"from {home} import {name} as {name}"


def _groups() -> Iterator[type]:
    """The groups of options whose modules are imported."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("hookscope.specs"):
            for value in vars(module).values():
                if inspect.isclass(value) and hasattr(value, "section"):
                    if any(settings_of(value)):
                        yield value


def _formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--line-length", "100", "--stdin-filename", "x.pyi", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> int:
    """Write the file, or with ``--check`` compare it; return the exit status."""
    fresh = render()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(fresh, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != fresh:
        print(f"{FILE} is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
