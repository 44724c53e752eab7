"""Packages import in one direction, and those that users wait for run without torch.

Both rules are functions from a package's folder to a list of complaints. They are run on hookscope,
which must have none, and on small packages that break them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.processes import run_python

# A package imports from itself and from those before it.
PACKAGES = (
    *("escapes", "errors", "version", "files", "specs", "results", "stores", "file_analysis"),
    *("views", "tensors", "sources", "hooks", "inputs", "execution", "extraction"),
    *("model_analysis", "training", "cli", "commands"),
)
TORCH_FREE = ("files", "specs", "results", "stores", "file_analysis", "views", "cli")

# What imports torch: only when it is asked for.
WITH_TORCH = {
    "stores.features.torch_dataset",  # a torch.utils.data.Dataset
    "cli.run_context",  # shows that torch is being imported, which takes seconds
}

# The one import upwards: a result finds its view by name, when it is shown.
BY_DESIGN = {("results.result", "hookscope.views.*")}


Modules = dict[str, ast.Module]  # by the dotted name inside the package


def modules_of(package: Path) -> Modules:
    """Parse all files of a package."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def modules(repo: Path) -> Modules:
    """The files of hookscope, parsed once for all tests."""
    return modules_of(repo / "hookscope")


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted names of what is imported, at the top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            parts = getattr(node.args[0], "values", node.args)  # of an f-text, "*" for what it adds
            texts = (part.value if isinstance(part, ast.Constant) else "*" for part in parts)
            yield node.lineno, "".join(map(str, texts))


def imports_upwards(modules: Modules) -> list[str]:
    complaints = []
    for name, tree in modules.items():
        home = name.split(".")[0]
        if home not in (*PACKAGES, "__init__", "__main__"):
            complaints.append(f"{name}: {home} is none of the packages")
            continue
        for line, target in imports_of(tree):
            if target.startswith("."):
                complaints.append(f"{name}:{line}: relative import; write the whole name")
            root, _, inner = target.partition(".")
            if root != "hookscope" or (name, target) in BY_DESIGN:
                continue
            other = inner.split(".")[0]
            if home in PACKAGES and other not in PACKAGES[: PACKAGES.index(home) + 1]:
                complaints.append(f"{name}:{line}: imports {target}, which is further down")
    return complaints


def imports_torch(modules: Modules) -> list[str]:
    return [
        f"{name}:{line}: imports {target}"
        for name, tree in modules.items()
        if name.split(".")[0] in TORCH_FREE and name not in WITH_TORCH
        for line, target in imports_of(tree)
        if target.split(".")[0] in ("torch", "torchvision")
    ]


def circles(modules: Modules) -> list[str]:
    """Files that import each other, at the top, inside functions or for types alone."""
    graph = {
        name: {owner for _, target in imports_of(tree) if (owner := owner_of(target, modules))}
        for name, tree in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def owner_of(target: str, modules: Modules) -> str:
    """The file that an imported name stands in, or an empty string."""
    inner = target.removeprefix("hookscope.")
    return next((name for name in (inner, inner.rpartition(".")[0]) if name in modules), "")


def stacks_that_signals_interrupt(modules: Modules) -> list[str]:
    """Blocks of an ``ExitStack`` where a signal can come between entering and keeping a context."""
    complaints = []
    for name, tree in modules.items():
        safe = {
            block
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            and any("signal_safe" in ast.unparse(one) for one in function.decorator_list)
            for block in ast.walk(function)
        }
        complaints += [
            f"{name}:{block.lineno}: an ExitStack outside a signal_safe_contextmanager"
            for block in ast.walk(tree)
            if isinstance(block, ast.With)
            and block not in safe
            and any("ExitStack(" in ast.unparse(item) for item in block.items)
        ]
    return complaints


RULES = (imports_upwards, imports_torch, circles, stacks_that_signals_interrupt)


@pytest.mark.parametrize("rule", RULES)
def test_hookscope_keeps_the_rule(rule, modules: Modules) -> None:
    assert rule(modules) == []


@pytest.mark.parametrize(
    ("rule", "file", "text"),
    [
        (imports_upwards, "results/stats.py", "def f():\n    from hookscope.hooks.x import Y"),
        (imports_upwards, "errors.py", "import hookscope.results.stats"),
        (imports_upwards, "commands/tree.py", "from hookscope import tree"),
        (imports_upwards, "views/table.py", "from hookscope.commands.tree import tree"),
        (imports_upwards, "results/stats.py", "from . import records"),
        (imports_upwards, "attic.py", ""),
        (imports_upwards, "specs/checks.py", "import_module('hookscope.sources.timm')"),
        (imports_upwards, "specs/checks.py", "importlib.import_module(f'hookscope.views.{x}')"),
        (circles, "errors.py", "def f():\n    from hookscope.version import X"),
        (
            stacks_that_signals_interrupt,
            "hooks/x.py",
            "def f():\n    with a, ExitStack() as b: ...",
        ),
        (imports_torch, "specs/model_spec.py", "def f():\n    import torch.nn"),
        (imports_torch, "views/module_tree.py", "from torchvision.models import resnet18"),
    ],
)
def test_the_rule_sees_what_breaks_it(rule, file: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "hookscope" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "hookscope" / "version.py").write_text("import hookscope.errors.y")
    assert len(rule(modules_of(tmp_path / "hookscope"))) == 1


def test_every_file_that_may_import_torch_does(modules: Modules) -> None:
    for name in WITH_TORCH:
        assert any(one.split(".")[0] == "torch" for _, one in imports_of(modules[name]))


def heavy_after(statement: str) -> set[str]:
    """What of torch, numpy and rich is loaded once a new interpreter has run ``statement``."""
    probe = f"import sys\n{statement}\nprint(*{{'torch', 'numpy', 'rich'}} & set(sys.modules))"
    return set(run_python("-c", probe, status=0).stdout.split())


def test_importing_hookscope_imports_nothing_heavy() -> None:
    assert heavy_after("import hookscope") == set()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("package", TORCH_FREE)
def test_torch_free_packages_import_no_torch(package: str, modules: Modules) -> None:
    names = [name for name in modules if name.split(".")[0] == package]
    lazily = {"stores.features.torch_dataset"}
    listed = ", ".join(f"hookscope.{name}" for name in names if name not in lazily)
    assert "torch" not in heavy_after(f"import {listed}")


def test_what_runs_a_script_imports_no_torch(repo: Path) -> None:
    """The script itself does, once it has set the variables that torch reads."""
    names = ("script_runner", "run_session", "script_messages")
    for name in names:
        tree = ast.parse((repo / "hookscope" / "training" / f"{name}.py").read_text("utf-8"))
        assert not [target for _, target in imports_of(tree) if target.startswith("torch")]
    listed = ", ".join(f"hookscope.training.{name}" for name in names)
    assert heavy_after(f"import {listed}") == set()


@pytest.mark.slow
def test_a_heavy_import_is_noticed() -> None:
    assert "torch" in heavy_after("import hookscope.tensors.nested")
