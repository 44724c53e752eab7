"""The types of the public names: ``python -m tools.stubs`` writes ``hookscope/__init__.pyi``.

Editors and type checkers read that file, because the functions get their keywords from groups of
options when they are imported. With ``--check`` nothing is written, and the exit status is 1 when
the file is stale.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import hookscope
from hookscope.specs.settings import settings_of

FILE = Path(hookscope.__file__).with_suffix(".pyi")
# Where the names in annotations come from, if not from the module of the function or of its groups.
HOMES = {
    **dict.fromkeys(("Callable", "Iterable", "Mapping", "Sequence"), "collections.abc"),
    **dict.fromkeys(("Any", "Literal", "overload"), "typing"),
    "PathLike": "os",
    "AbstractContextManager": "contextlib",
    "nn": "torch",
    "Tensor": "torch",
    "Module": "torch.nn",
    "Optimizer": "torch.optim",
}
MODULES = ("os", "torch")
MODULE_OF: dict[str, str] = vars(hookscope)["_MODULES"]
_WORD = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")


def render() -> str:
    """Return the text of the file."""
    functions = {
        name: value
        for name in hookscope.__all__
        if inspect.isfunction(value := getattr(hookscope, name))
    }
    others = [
        f"from {MODULE_OF[name]} import {name} as {name}"
        for name in hookscope.__all__
        if name in MODULE_OF and name not in functions
    ]
    lines = [line for name, function in functions.items() for line in _lines(name, function)]
    names = {word for line in lines for word in _WORD.findall(_annotations(line))}
    names |= {"overload"} if any(line.startswith("@") for line in lines) else set()
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


def _lines(name: str, function: Any) -> Iterator[str]:
    """A function, or its overloads: each has the keywords of the function that it does not name."""
    signature = inspect.signature(function)
    if inspect.isgeneratorfunction(inspect.unwrap(function)):  # made a context manager
        returned = str(signature.return_annotation).replace("Iterator", "AbstractContextManager")
        signature = signature.replace(return_annotation=returned)
    source = Path(str(sys.modules[function.__module__].__file__)).read_text("utf-8")
    overloads = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
    ]
    if not overloads:
        line = _function(name, signature)
        for alias, meaning in _aliases(source):
            line = re.sub(rf"\b{alias}\b", meaning, line)
        yield line
    for node in overloads:
        named = {arg.arg: arg.annotation for arg in (*node.args.args, *node.args.kwonlyargs)}
        parameters = [
            parameter.replace(annotation=ast.unparse(annotation))
            if (annotation := named.get(parameter.name))
            else parameter
            for parameter in signature.parameters.values()
        ]
        given = {
            a.arg
            for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if d is None
        }
        given |= {a.arg for a in node.args.args[: len(node.args.args) - len(node.args.defaults)]}
        parameters = [
            parameter.replace(default=inspect.Parameter.empty)
            if parameter.name in given
            else parameter
            for parameter in parameters
        ]
        assert node.returns is not None
        changed = signature.replace(
            parameters=parameters, return_annotation=ast.unparse(node.returns)
        )
        yield f"@overload\n{_function(name, changed)}"


def _aliases(source: str) -> Iterator[tuple[str, str]]:
    """The names for types that a module makes for type checkers alone, and what they stand for."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.Assign):
                    yield ast.unparse(inner.targets[0]), ast.unparse(inner.value)


def _function(name: str, signature: inspect.Signature) -> str:
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
    line = line.removesuffix(": ...")
    line = re.sub(r"^(@overload\n)?def \w+", "", line)
    return re.sub(r"= ('[^']*'|[\w.]+)", "", re.sub(r"\w+:", "", line))


def _imports(names: set[str], functions: dict[str, Any]) -> Iterator[str]:
    for module in MODULES:
        if module in names:
            yield f"import {module}"
    spaces = [function.__globals__ for function in functions.values()]
    spaces += [vars(sys.modules[group.__module__]) for group in _groups()]
    spaces += map(vars, _results())
    for name in sorted(names - {*MODULES, *vars(builtins)}):
        if name in HOMES:
            yield f"from {HOMES[name]} import {name}"
            continue
        values = [space[name] for space in spaces if name in space]
        if not values:
            raise SystemExit(f"{name} is not known in the modules of the public functions")
        home = getattr(values[0], "__module__", "")
        if name not in vars(sys.modules.get(home, builtins)):  # an alias of a type
            homes = [m for m in list(sys.modules) if m.startswith("hookscope.")]
            home = next((m for m in homes if vars(sys.modules[m]).get(name) is values[0]), "")
        if not home:
            raise SystemExit(f"no module has {name}")
        yield f"from {home} import {name} as {name}"


def _results() -> Iterator[ModuleType]:
    """The modules of classes that some functions import for type checkers alone."""
    for name in ("results", "stores", "file_analysis", "views.images", "extraction"):
        package = import_module(f"hookscope.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield import_module(found.name)


def _groups() -> Iterator[type]:
    """The groups of options whose modules are imported."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("hookscope.specs"):
            for value in vars(module).values():
                is_group = inspect.isclass(value) and hasattr(value, "section")
                if is_group and any(settings_of(value)):
                    yield value


def _formatted(text: str) -> str:
    """Sort the imports and lay out the file, as ``ruff`` does for every other one."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    for words in (("check", "--fix", "--select", "I", "--quiet"), ("format",)):
        done = subprocess.run(
            [ruff, *words, "--stdin-filename", str(FILE), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


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
