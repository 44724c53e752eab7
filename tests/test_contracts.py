"""What is done in one place of the package alone, and what the package hands out."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hookscope

# What is named in one place alone: a pattern of names, and one of the paths where they may stand.
PLACES = {
    "hooks": (r"\.register_(\w+_)?hook$", r"hooks/(hook_set|process_hooks)\.py"),
    "TorchScript": (r"^torch\.jit\b", r"sources/torchscript/.*"),
    "matplotlib": (r"^matplotlib\b", r"views/(images/.*|\w+\.py)"),  # an extra
    "variables of frames": (
        r"\.(f_locals|getargvalues|clear_frames)$",
        r"files/frame_variables\.py",
    ),
    "printing": (r"^(print\(\)|click\.s?echo|sys\.stdout)(\.|$)", r"cli/console\.py"),
}


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each import, attribute and plain call (``print()``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, dotted(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, f"{node.func.id}()"


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute; ``ast.unparse`` takes many times as long. Calls are ``()``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "()")
    return ".".join(reversed(parts))


Names = dict[str, list[tuple[int, str]]]  # with their lines, by path


def names_of(package: Path) -> Names:
    """The names in each file, from its syntax tree: docstrings and comments do not count."""
    return {
        file.relative_to(package).as_posix(): list(names_in(ast.parse(file.read_text("utf-8"))))
        for file in sorted(package.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def names(repo: Path) -> Names:
    """The names in the files of hookscope, which are parsed once for all tests."""
    return names_of(repo / "hookscope")


def uses(names: Names, pattern: str, allowed: str, within: str = "") -> list[str]:
    """The lines outside ``allowed`` (a pattern of paths) that name what ``pattern`` describes."""
    lines = {
        f"{path}:{line}": name
        for path, found in names.items()
        if path.startswith(within) and not re.fullmatch(allowed, path)
        for line, name in found
        if re.search(pattern, name)
    }
    return [f"{line}: {name}" for line, name in lines.items()]


@pytest.mark.parametrize("what", PLACES)
def test_it_is_done_in_one_place(what: str, names: Names) -> None:
    assert uses(names, *PLACES[what]) == []


def test_what_is_private_about_scripted_models_is_used_in_one_file(names: Names) -> None:
    private = r"sources/torchscript/private\.py"
    assert uses(names, r"^torch\._C\b", private, "sources/torchscript/") == []


@pytest.mark.parametrize(
    ("what", "file", "text"),
    [
        ("hooks", "commands/tree.py", "def f(m):\n    m.register_forward_hook(print)"),
        ("hooks", "tensors/nested.py", "def f(t):\n    t.register_hook(print)"),
        ("hooks", "commands/tree.py", "add = m.a.register_full_backward_pre_hook"),
        ("TorchScript", "sources/python_file.py", "import torch\ntorch.jit.load('x')"),
        ("TorchScript", "sources/python_file.py", "from torch.jit import load"),
        ("matplotlib", "results/stats.py", "from matplotlib.figure import Figure"),
        ("variables of frames", "training/found_models.py", "held = frame.f_locals"),
        ("variables of frames", "hooks/layers.py", "import inspect\ninspect.getargvalues(frame)"),
        ("printing", "commands/tree.py", "print('hello')"),
        ("printing", "commands/tree.py", "import click\nclick.echo('hello')"),
        ("printing", "commands/tree.py", "from click import secho"),
        ("printing", "cli/main.py", "import sys\nsys.stdout.write('hello')"),
    ],
)
def test_another_place_is_noticed(what: str, file: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert len(uses(names_of(tmp_path), *PLACES[what])) == 1


MODES = {"no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast"}


def bare_modes(source: str) -> list[str]:
    """The modes of PyTorch that are entered otherwise than by ``signal_safe``."""
    if not any(f"torch.{mode}" in source for mode in MODES):
        return []
    tree = ast.parse(source)
    safe = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal_safe"
        for part in ast.walk(node)
    }
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and id(node) not in safe
        if ast.unparse(node.func) in {f"torch.{mode}" for mode in MODES}
    ]


def test_no_interrupt_leaves_a_mode_of_pytorch_on(repo: Path) -> None:
    """An interrupt in the ``__exit__`` of PyTorch's own context managers does."""
    for file in (repo / "hookscope").rglob("*.py"):
        assert bare_modes(file.read_text(encoding="utf-8")) == [], file
    assert len(bare_modes("@torch.no_grad()\ndef f():\n    with torch.autocast('cpu'): pass")) == 2


def test_words_alone_are_no_use(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Calls print() and m.register_hook() in words only."""')
    names = names_of(tmp_path)
    assert [line for place in PLACES.values() for line in uses(names, *place)] == []


def test_no_module_hides_a_public_function(repo: Path) -> None:
    """The package would hand out the file instead, depending on which was imported first."""
    assert [p.name for p in (repo / "hookscope").iterdir() if p.stem in hookscope.__all__] == []


def test_the_package_itself_holds_few_modules(repo: Path) -> None:
    found = {path.name for path in (repo / "hookscope").iterdir() if path.is_file()}
    assert found == {
        "__init__.py",
        "__init__.pyi",
        "__main__.py",
        "errors.py",
        "escapes.py",
        "version.py",
        "py.typed",
    }


def test_exported_names_resolve_to_what_type_checkers_see(repo: Path) -> None:
    tree = ast.parse((repo / "hookscope" / "__init__.pyi").read_text(encoding="utf-8"))
    seen = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen |= {a.asname for node in imports for a in node.names if a.asname}
    [listed] = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(listed) == hookscope.__all__
    assert set(hookscope.__all__) <= seen | {"__version__"}
    assert dir(hookscope) == sorted(hookscope.__all__)
    for name in hookscope.__all__:
        assert not isinstance(getattr(hookscope, name), ModuleType), name


def test_every_public_name_says_what_it_does_and_hides_no_builtin() -> None:
    for name in set(hookscope.__all__) - {"__version__"}:
        assert not hasattr(builtins, name), name
        documented = getattr(hookscope, name)
        assert (documented.__doc__ or "").partition("\n")[0].endswith("."), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="captur"):
        _ = hookscope.captur


def test_a_class_has_one_name_in_the_whole_project(repo: Path) -> None:
    homes: dict[str, list[str]] = {}
    for path in (repo / "hookscope").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.name)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
