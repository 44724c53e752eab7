"""Trees that ``tree`` reuses: equal to a true run, without torch, and never stale."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hookscope.results.module_tree import ModuleTree
from hookscope.specs.model_spec import parse_model
from hookscope.stores import tree_cache
from hookscope.stores.tree_cache import (
    StoredTree,
    interpreter_state,
    read_tree,
    tree_key,
    write_tree,
)
from tests.processes import COMMAND, run_python

ROOT = Path(__file__).parents[2]
ARGUMENTS: dict[str, Any] = {"depth": 1, "trust": False, "model_args": None}
CASES = [
    ["alexnet"],
    ["alexnet", "--shapes", "--json"],
    pytest.param(["alexnet", "--layer", "features.*", "--mermaid"], marks=pytest.mark.exhaustive),
    ["sample_models/digits_scripted.pt", "--shapes"],
    ["sample_models/digits_exported.pt2", "--shapes"],
]


def tree(cache: Path, *arguments: str, option: str = "") -> tuple[str, str, bool]:
    """Standard output, standard error, and whether torch was imported."""
    line = ("-X", "importtime", *COMMAND, "tree", *arguments, *([option] if option else []))
    done = run_python(*line, cwd=ROOT, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, status=0)
    lines = done.stderr.splitlines()
    imported = any(line.startswith("import time:") and line.endswith(" torch") for line in lines)
    rest = [line for line in lines if not line.startswith("import time:")]
    return done.stdout, "\n".join(rest), imported


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("arguments", CASES, ids=lambda arguments: "_".join(arguments))
def test_the_second_run_prints_the_same_without_torch(tmp_path: Path, arguments: list[str]) -> None:
    first = tree(tmp_path, *arguments)
    assert first[2]
    assert tree(tmp_path, *arguments) == (*first[:2], False)
    if "--shapes" not in arguments:
        assert tree(tmp_path, *arguments, option="--no-cache") == first


@pytest.mark.exhaustive
@pytest.mark.slow
def test_user_code_is_never_stored(tmp_path: Path) -> None:
    for _ in range(2):
        assert tree(tmp_path, "sample_models/digits.py:trained")[2]
    assert not (tmp_path / "hookscope" / "trees").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_damage_and_a_folder_that_cannot_be_written_do_not_matter(tmp_path: Path) -> None:
    expected = tree(tmp_path, "alexnet")
    [file] = (tmp_path / "hookscope" / "trees").iterdir()
    data = file.read_bytes()
    file.write_bytes(data.replace(b"AlexNet", b"AlexNot"))
    assert tree(tmp_path, "alexnet") == expected
    assert file.read_bytes() == data
    (tmp_path / "file").write_text("")
    assert tree(tmp_path / "file", "alexnet") == expected


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"key": 1}', b"\xff", b"[" * 9999])
def test_other_content_is_no_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "hookscope" / "trees" / f"{'a' * 32}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    assert read_tree("a" * 64) is None


def key(spec: str = "alexnet", **changes: Any) -> str | None:
    return tree_key(parse_model(spec), {**ARGUMENTS, **changes}, interpreter_state())


def test_arguments_change_the_key() -> None:
    keys = {key(), key("resnet18"), key(depth=2), key(layers=["a"]), key("timm:resnet18")}
    assert len(keys) == 5
    assert key() == key()


def test_code_and_pickles_that_run_have_no_key(tmp_path: Path) -> None:
    assert key("sample_models/digits.py:trained") is None
    assert key("sample_models/digits_exported.pt2", trust=True) is None
    assert key(model_args={"num_classes": 3}) is None
    assert key("hf:sample_models/capitals") is None


def test_the_bytes_of_a_file_change_the_key(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    shutil.copy(ROOT / "sample_models/digits_scripted.pt", file)
    before, status = key(str(file)), file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, time and inode
    assert before is not None
    assert tree_key(parse_model(str(file)), ARGUMENTS, interpreter_state()) != before


@pytest.mark.parametrize("change", ["edit", "same_size", "add", "remove", "version"])
def test_a_changed_package_changes_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    packages = tmp_path / "site-packages"
    folder = packages / "many_models"
    (folder / "inner").mkdir(parents=True)
    (packages / "many_models-1.0.dist-info").mkdir()
    for name in ("__init__.py", "inner/net.py"):
        (folder / name).write_text("x = 1\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr(tree_cache, "_PACKAGES", ("hookscope", "many_models"))
    before = key()
    assert key() == before
    net = folder / "inner/net.py"
    if change == "edit":
        net.write_text("x = 10\n")
    elif change == "same_size":
        status = net.stat()
        net.write_text("x = 2\n")
        os.utime(net, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "add":
        (folder / "inner/more.py").write_text("")
    elif change == "remove":
        net.unlink()
    else:
        (packages / "many_models-1.0.dist-info").rename(packages / "many_models-1.1.dist-info")
    assert key() != before


@pytest.mark.parametrize("name", ["TORCH_LOGS", "PYTORCH_JIT", "TIMM_FUSED_ATTN", "PYTHONHASHSEED"])
def test_variables_of_the_packages_change_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = key()
    monkeypatch.setenv(name, "12")
    assert key() != before


def test_the_oldest_trees_leave_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hookscope

    whole = hookscope.tree("alexnet")
    assert isinstance(whole, ModuleTree)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = [f"{n:064}"[::-1] for n in range(4)]
    for n, name in enumerate(names):
        write_tree(name, StoredTree(whole, ((20, "a note"),)))
        [file] = [f for f in (tmp_path / "hookscope/trees").iterdir() if f.stem == name[:32]]
        monkeypatch.setattr(tree_cache, "_MOST_BYTES", 3 * file.stat().st_size + 9)
        os.utime(file, (n, n))
    assert read_tree(names[0]) is None
    assert [read_tree(name) for name in names[1:]] == [StoredTree(whole, ((20, "a note"),))] * 3
