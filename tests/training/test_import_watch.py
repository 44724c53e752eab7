"""A function is called once a module has been imported, which looks as if nobody had watched."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookscope.training import script_messages
from hookscope.training.run_session import call_after_import
from tests.processes import run_python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in front of ``sys.path``; what is imported from it is forgotten."""
    before, finders = set(sys.modules), list(sys.meta_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(script_messages, "_reported", set())
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    assert sys.meta_path == finders


def write(folder: Path, name: str, text: str = "value = 1") -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    importlib.invalidate_caches()


def test_it_is_called_once_when_the_module_is_complete(folder: Path) -> None:
    write(folder, "watched_a/__init__.py", "from watched_a import part\nlast = 1")
    write(folder, "watched_a/part.py", "import watched_a")
    seen = []
    for number in range(3):  # several functions may wait for it
        call_after_import(
            "watched_a", lambda number=number: seen.append(sys.modules["watched_a"].last + number)
        )
    importlib.import_module("watched_a.part")
    importlib.reload(sys.modules["watched_a"])
    assert sorted(seen) == [1, 2, 3]
    call_after_import("watched_a", lambda: seen.append(9))  # imported already
    assert seen[3:] == [9]


def test_the_module_shows_no_trace_of_it(folder: Path) -> None:
    text = "kind, own = type(__loader__), dict(vars(__loader__))\nspec = __spec__\nclass Item: pass"
    write(folder, "watched_c.py", text)
    write(folder, "other_c.py", text)
    call_after_import("watched_c", lambda: None)
    found = importlib.util.find_spec("watched_c")  # libraries look first
    assert found is not None
    assert found.loader.get_source("watched_c") == text
    watched, other = (importlib.import_module(name) for name in ("watched_c", "other_c"))
    assert watched.kind is other.kind
    assert watched.own.keys() == other.own.keys() == vars(watched.__loader__).keys()
    assert watched.__spec__ is watched.spec
    assert watched.__spec__.loader is watched.__loader__
    assert vars(watched).keys() == vars(other).keys()
    assert pickle.loads(pickle.dumps(watched.Item())).__class__ is watched.Item
    assert importlib.reload(watched) is watched


@pytest.mark.parametrize(
    ("text", "error"), [("1 / 0", ZeroDivisionError), (None, ModuleNotFoundError)]
)
def test_an_import_that_fails_is_not_the_one(folder: Path, text: str | None, error) -> None:
    name = f"watched_{error.__name__}"
    if text is not None:
        write(folder, f"{name}.py", text)
    seen: list[int] = []
    call_after_import(name, lambda: seen.append(1))
    with pytest.raises(error):
        importlib.import_module(name)
    assert seen == []
    write(folder, f"{name}.py", "value = 'of another length'")
    importlib.import_module(name)
    assert seen == [1]


def test_a_module_of_an_archive_is_watched(folder: Path, monkeypatch) -> None:
    """One loader serves all modules of the archive."""
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr("watched_f.py", "import beside_f")
        archive.writestr("beside_f.py", "")
    monkeypatch.syspath_prepend(folder / "some.zip")
    seen: list[bool] = []
    call_after_import("watched_f", lambda: seen.append("beside_f" in sys.modules))
    importlib.util.find_spec("watched_f")
    importlib.import_module("beside_f")
    assert seen == []
    importlib.import_module("watched_f")
    assert seen == [True]


def test_threads_that_import_at_once_call_it_once(folder: Path) -> None:
    write(folder, "watched_g.py", "import time; time.sleep(0.05)")
    seen: list[int] = []
    call_after_import("watched_g", lambda: seen.append(1))
    threads = [
        threading.Thread(target=importlib.import_module, args=["watched_g"]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1]


@pytest.mark.parametrize("shows_traceback", [False, True])
def test_a_fault_is_reported_once_and_the_import_succeeds(
    folder: Path, capsys, monkeypatch, shows_traceback: bool
) -> None:
    def fail() -> None:
        raise ValueError("two\nlines")

    monkeypatch.setenv("HOOKSCOPE_DEBUG", "1" * shows_traceback)
    for name in (f"watched_h{shows_traceback}", f"watched_i{shows_traceback}"):
        write(folder, f"{name}.py")
        for _ in range(2):
            call_after_import(name, fail)
        assert importlib.import_module(name).value == 1
        said = capsys.readouterr().err
        assert said.startswith("hookscope: ") and said.count(name) == 1
        assert "ValueError: two lines. The script continues.\n" in said
        assert ("Traceback" in said) == shows_traceback


def test_ctrl_c_in_the_function_is_not_a_fault(folder: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    write(folder, "watched_j.py")
    call_after_import("watched_j", interrupt)
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("watched_j")


def test_a_loader_that_cannot_be_watched_still_loads(folder: Path, capsys) -> None:
    name = "_testsinglephase"  # any module will do; this finder gives it a loader that is a class

    class Loader:
        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            module.value = 5

    class Finder:
        @staticmethod
        def find_spec(wanted, path, target=None):
            return importlib.util.spec_from_loader(wanted, Loader) if wanted == name else None

    sys.meta_path.insert(0, Finder)
    call_after_import(name, lambda: None)
    assert importlib.import_module(name).value == 5
    assert f" {name} " in capsys.readouterr().err
    del sys.meta_path[:2]  # it still waits


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_calls_nothing(folder: Path, clean_environment) -> None:
    script = """
import os
from hookscope.training.run_session import call_after_import
call_after_import("colorsys", lambda: print("called", flush=True))
child = os.fork()
if not child:
    import colorsys
    os._exit(0)
os.waitpid(child, 0)
print("parent", flush=True)
import colorsys
"""
    done = run_python("-c", script, env=clean_environment, status=0)
    assert done.stdout.split() == ["parent", "called"]
