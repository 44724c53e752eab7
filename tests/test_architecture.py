"""The house keeps its shape: imports go down, and each kind of work is done in one room.

Every rule is a function from a package's folder to a list of complaints. It is run on hookscope,
which must have none, and on a small planted package that breaks it, which must have one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hookscope

# From the ground up. A file imports only from rows above its own here, and from its own package.
# A name stands for a file or for all of a package that has no row of its own.
FLOORS = (
    ("errors", "suggest", "strict_json", "version", "kinds", "choices", "pickles"),
    ("plugins", "filekinds", "dimensions", "typed_json"),
    ("shards",),
    ("patterns", "config", "spec", "outputs", "losses.formulas", "inputs.files", "edits.formulas"),
    ("inputs.words", "datasets.listing"),
    ("demands",),
    (
        *("sources.catalog", "edits.words", "own_hooks.words", "cams.words", "keys"),
        *("health.checks", "datasets.reductions"),
    ),
    (
        *("stats", "agreement", "module_tree", "atomic", "header", "metadata"),
        *("diffing.result", "diffing.tolerances", "diffing.words"),
    ),
    ("records", "arrays", "narrow", "diffing.measure"),
    ("events", "ablation.result", "reader", "diffing.matching", "gradient_sizes", "health.result"),
    ("pictures", "diffing.judging", "diffing.choosing"),
    ("pictures.figures", "diffing.files"),
    ("datasets.place",),
    ("datasets.folder",),
    ("datasets.schema",),
    ("datasets.manifest", "datasets.serving"),
    ("datasets.reading",),
    ("tensors", "summaries", "lending", "wrappers", "seeding"),
    ("gates",),
    ("sources", "losses", "store"),
    ("inputs", "losses.custom"),
    ("modules", "captures"),
    ("select", "coverage", "own_hooks.emission"),
    ("hooks", "own_hooks.binding"),
    ("keeper",),
    ("recorder", "wrapping", "tracing"),
    ("ops",),
    ("own_hooks",),
    ("edits",),
    ("changes",),
    ("generation", "dispatch"),
    ("prepare",),
    ("execute", "provenance"),
    ("layer_runs", "penalties"),
    ("differentiate", "numerical"),
    ("stepping",),
    ("runs",),
    ("edits.effect", "keywords"),
    ("ablation", "health", "diffing"),
    ("render",),
    ("page", "cams"),
    ("datasets",),
    ("verbs",),
    ("cli",),
    ("__init__", "__main__"),
)
HEIGHT = {name: height for height, names in enumerate(FLOORS) for name in names}
LIGHT = [name for names in FLOORS[:7] for name in names]
# Of torch alone: a capture is looked at with numpy and rich.
TORCH_FREE = {
    *("render", "page", "verbs.plot", "verbs.diff", "verbs.open", "verbs.export", "verbs.verify"),
    *("datasets.place", "datasets.folder", "datasets.schema", "datasets.manifest"),
    "datasets.reading",
    *(name for names in FLOORS[7:12] for name in names),
}

# render sees values and never a model, whatever its height would let it reach.
SEEN_BY_RENDER = {"errors", "suggest", "strict_json", "kinds", "config", "losses.formulas"}
SEEN_BY_RENDER |= {
    "sources.catalog",
    "stats",
    "ablation.result",
    "agreement",
    "diffing.result",
    "gradient_sizes",
    "health.checks",
    "health.result",
    "outputs",
    "module_tree",
    "records",
    "events",
    "pictures",
    "datasets.reading",
    "render",
}

PUBLIC_VERBS = {"tree", "capture", "grads", "models", "load", "load_model", "record"}
PUBLIC_VERBS |= {"gradcheck", "step", "trace", "ablate", "wrap", "emit", "cam", "report"}
PUBLIC_VERBS |= {"plot", "filters", "check", "diff"}
PUBLIC_VERBS |= {"extract", "open", "export", "verify"}

Rule = Callable[[Path], list[str]]


def sources_of(package: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Yield each file of ``package``: its path, its dotted name inside the package, its tree."""
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package)
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        yield path.as_posix(), name, ast.parse(file.read_text(encoding="utf-8"))


def imports_of(tree: ast.Module, package: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of what is imported, at the top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            folder = package.parent.joinpath(*base.split("."))
            for alias in node.names:
                submodule = (folder / alias.name).is_dir() or (
                    folder / f"{alias.name}.py"
                ).is_file()
                inner = submodule or base == "hookscope"
                yield node.lineno, f"{base}.{alias.name}" if inner else base


def row_of(name: str) -> str | None:
    """The entry of FLOORS that a module belongs to: its own, else the nearest package's."""
    while name and name not in HEIGHT:
        name = name.rpartition(".")[0]
    return name or None


def imports_upwards(package: Path) -> list[str]:
    complaints = []
    for path, name, tree in sources_of(package):
        home = row_of(name)
        if home is None:
            complaints.append(f"{path}: has no floor; give it one in FLOORS")
            continue
        for line, target in imports_of(tree, package):
            if target.startswith("."):
                complaints.append(f"{path}:{line}: relative import; write the whole name")
            if target.split(".")[0] != "hookscope" or target == "hookscope.__version__":
                continue
            inner = target.partition(".")[2] or "__init__"
            other = row_of(inner)
            if other != home and (other is None or HEIGHT[other] >= HEIGHT[home]):
                complaints.append(f"{path}:{line}: imports {target}, which is not below it")
            elif home == "render" and other not in SEEN_BY_RENDER:
                complaints.append(f"{path}:{line}: render imports {target}")
    return complaints


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each import, attribute and plain call (``print()``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"{node.func.id}()"


def uses(package: Path, pattern: str, allowed: str) -> list[str]:
    """The lines outside ``allowed`` (a pattern of paths) that name what ``pattern`` describes.

    Names are taken from the syntax tree, so that docstrings and comments do not count.
    """
    lines: dict[str, str] = {}
    for path, _, tree in sources_of(package):
        if not re.fullmatch(allowed, path):
            found = names_in(tree)
            lines |= {f"{path}:{line}": name for line, name in found if re.search(pattern, name)}
    return [f"{line}: {name}" for line, name in lines.items()]


def registers_hooks_elsewhere(package: Path) -> list[str]:
    return uses(package, r"\.register_(\w+_)?hook$", allowed=r"hooks\.py")


def names_torchscript_elsewhere(package: Path) -> list[str]:
    return uses(package, r"^torch\.jit\b", allowed=r"sources/torchscript/.*")


def looks_into_graphs_elsewhere(package: Path) -> list[str]:
    """What is not public about scripted models is to be mended in one place when it changes."""
    lines = uses(package, r"^torch\._C\b", allowed=r"sources/torchscript/private\.py")
    return [line for line in lines if line.startswith("sources/torchscript/")]


def draws_elsewhere(package: Path) -> list[str]:
    """matplotlib is an extra: whatever else imports it would fail where it is not installed."""
    return uses(package, r"^matplotlib\b", allowed=r"pictures/figures/.*")


def prints_elsewhere(package: Path) -> list[str]:
    pattern = r"^(print\(\)|click\.s?echo|sys\.stdout)(\.|$)"
    return uses(package, pattern, allowed=r"cli/out\.py|render/.*")


def hides_a_public_verb(package: Path) -> list[str]:
    """The package would hand out the file in place of the function, depending on who came first."""
    return sorted(p.name for p in package.iterdir() if p.stem in PUBLIC_VERBS)


RULES: list[tuple[Rule, dict[str, str]]] = [
    (imports_upwards, {"stats.py": "def f():\n    from hookscope.hooks import HookSet"}),
    (imports_upwards, {"errors.py": "import hookscope.stats"}),
    (imports_upwards, {"modules.py": "from hookscope import captures", "captures.py": ""}),
    (imports_upwards, {"cli/tree.py": "from hookscope import tree"}),
    (imports_upwards, {"sources/catalog.py": "from hookscope.sources.loading import load"}),
    (imports_upwards, {"render/table.py": "from hookscope.hooks import HookSet"}),
    (imports_upwards, {"stats.py": "from . import errors"}),
    (imports_upwards, {"attic.py": ""}),
    (registers_hooks_elsewhere, {"api.py": "def f(m):\n    m.register_forward_hook(print)"}),
    (registers_hooks_elsewhere, {"tensors.py": "def f(t):\n    t.register_hook(print)"}),
    (registers_hooks_elsewhere, {"api.py": "add = m.a.register_full_backward_pre_hook"}),
    (names_torchscript_elsewhere, {"sources/pyfile.py": "import torch\ntorch.jit.load('x')"}),
    (names_torchscript_elsewhere, {"sources/pyfile.py": "from torch.jit import load"}),
    (looks_into_graphs_elsewhere, {"sources/torchscript/a.py": "import torch\ntorch._C.Graph()"}),
    (draws_elsewhere, {"pictures/maps.py": "from matplotlib.figure import Figure"}),
    (prints_elsewhere, {"api.py": "print('hello')"}),
    (prints_elsewhere, {"cli/tree.py": "import click\nclick.echo('hello')"}),
    (prints_elsewhere, {"cli/tree.py": "from click import secho"}),
    (prints_elsewhere, {"cli/main.py": "import sys\nsys.stdout.write('hello')"}),
    (hides_a_public_verb, {"capture.py": ""}),
    (hides_a_public_verb, {"models/__init__.py": ""}),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _ in RULES))
def test_hookscope_keeps_the_rule(rule: Rule, repo: Path) -> None:
    assert rule(repo / "hookscope") == []


@pytest.mark.parametrize(("rule", "files"), RULES)
def test_the_rule_sees_what_breaks_it(rule: Rule, files: dict[str, str], tmp_path: Path) -> None:
    package = tmp_path / "hookscope"
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert len(rule(package)) == 1


def test_rules_allow_what_they_should(tmp_path: Path) -> None:
    package = tmp_path / "hookscope"
    (package / "cli").mkdir(parents=True)
    (package / "errors.py").write_text('"""Calls print() and m.register_hook() in words only."""')
    (package / "hooks.py").write_text("from hookscope.errors import E\nm.register_hook(f)")
    (package / "cli" / "out.py").write_text("from hookscope import hooks\nprint('x')")
    assert [complaint for rule, _ in RULES for complaint in rule(package)] == []


def test_every_floor_is_lived_on(repo: Path) -> None:
    names = {name for _, name, _ in sources_of(repo / "hookscope")}
    assert set(HEIGHT) - names == set()


def heavy_after(statement: str) -> set[str]:
    """What of torch, numpy and rich is loaded once a new interpreter has run ``statement``."""
    probe = f"import sys\n{statement}\nprint(*{{'torch', 'numpy', 'rich'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_importing_hookscope_imports_nothing_heavy() -> None:
    assert heavy_after("import hookscope") == set()


@pytest.mark.parametrize("name", LIGHT)
def test_ground_floor_imports_nothing_heavy(name: str) -> None:
    assert heavy_after(f"import hookscope.{name}") == set()


def test_looking_at_a_file_imports_no_torch(repo: Path) -> None:
    named = [name for _, name, _ in sources_of(repo / "hookscope")]
    rooms = [name for name in named if {name, row_of(name)} & TORCH_FREE]
    assert {"reader", "records", "pictures.figures.flow", "verbs.plot", "render.capture"} < set(
        rooms
    )
    assert "torch" not in heavy_after(f"import {', '.join(f'hookscope.{name}' for name in rooms)}")


@pytest.mark.slow
def test_a_heavy_import_is_noticed() -> None:
    assert "torch" in heavy_after("import hookscope.tensors")


def test_exported_names_resolve_to_what_type_checkers_see(repo: Path) -> None:
    tree = ast.parse((repo / "hookscope" / "__init__.py").read_text(encoding="utf-8"))
    [typing_only] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {a.name for n in typing_only.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert sorted(hookscope.__all__) == sorted(seen | {"__version__"})
    assert set(hookscope.__all__) > PUBLIC_VERBS
    assert dir(hookscope) == sorted(hookscope.__all__)
    for name in hookscope.__all__:
        assert not isinstance(getattr(hookscope, name), ModuleType), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="captur"):
        _ = hookscope.captur
