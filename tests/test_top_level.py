"""The files at the top do what a newcomer needs of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from PIL import Image

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make here")


def make(folder: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tools = {name: shutil.which(name) for name in ("make", "sh")}
    assert tools["make"]
    unwanted = {"VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run(
        [tools["make"], target, f"SHELL={tools['sh']}"],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def checkout(repo: Path, tmp_path: Path) -> Path:
    """A folder with the Makefile and no environment."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(repo / name, tmp_path / name)
    return tmp_path


@needs_make
def test_make_alone_lists_its_targets(checkout: Path) -> None:
    done = make(checkout, "help")
    assert done.returncode == 0
    targets = ("demo", "test", "test-oldest", "test-all", "check", "docs", "site", "bench", "clean")
    for target in targets:
        assert f"make {target} " in done.stdout


@needs_make
def test_make_without_python_says_what_is_missing_in_one_sentence(checkout: Path) -> None:
    done = make(checkout, "demo", PATH=str(checkout / "nowhere"))
    assert done.returncode != 0
    first, *rest = done.stderr.splitlines()
    assert first.startswith("hookscope needs Python 3.10 or newer")
    assert "make demo PYTHON=" in first
    assert all(line.startswith("make") for line in rest)


@needs_make
def test_make_does_not_take_an_old_python(checkout: Path) -> None:
    old = checkout / "python-of-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(checkout, "demo", PYTHON=str(old))
    assert done.returncode != 0
    assert "needs Python 3.10 or newer" in done.stderr
    assert not (checkout / ".venv").exists()


@needs_make
def test_make_names_an_active_environment_that_is_gone(checkout: Path) -> None:
    done = make(checkout, "demo", VIRTUAL_ENV=str(checkout / "gone"))
    assert done.returncode != 0
    assert "gone has no Python" in done.stderr
    assert not (checkout / "gone").exists()


@needs_make
def test_make_installs_again_only_when_pyproject_changed(checkout: Path) -> None:
    log = checkout / "log"
    python = checkout / "env with spaces" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >>"{log}"\n')
    python.chmod(0o755)

    def installs(target: str) -> int:
        log.write_text("")
        done = make(checkout, target, VIRTUAL_ENV=str(python.parent.parent))
        assert done.returncode == 0, done.stderr
        return log.read_text().count(" install ")

    old = (checkout / "pyproject.toml").stat().st_mtime - 100
    os.utime(checkout / "pyproject.toml", (old, old))
    assert installs("ready") == 1
    assert installs("ready") == 0
    assert installs("ready-dev") == 1
    assert installs("ready-dev") == 0
    assert installs("ready") == 0
    later = (checkout / "pyproject.toml").stat().st_mtime + 1000
    os.utime(checkout / "pyproject.toml", (later, later))
    assert installs("ready") == 1


def test_demo_shows_the_first_commands_of_the_readme(repo: Path) -> None:
    makefile = (repo / "Makefile").read_text("utf-8")
    digits = re.search(r"^DIGITS := (\S+)$", makefile, re.MULTILINE)
    assert digits
    shown = re.findall(r"\$\(call show,(.+)\)", makefile.replace("$(DIGITS)", digits[1]))
    first = re.search(r"^```sh\n(.*?)^```$", (repo / "README.md").read_text("utf-8"), re.S | re.M)
    assert first and shown == first[1].splitlines()


def test_continuous_integration_runs_only_make(repo: Path) -> None:
    script = (repo / ".ci" / "run").read_text("utf-8")
    commands = "".join(line for line in script.splitlines(True) if not line.startswith("#"))
    wanted = {"ready-dev", "check", "test-oldest", "test"}
    assert set(re.findall(r"\bmake ([\w-]+)", commands)) == wanted
    assert os.access(repo / ".ci" / "run", os.X_OK) or os.name == "nt"


def test_the_photo_is_small_and_holds_nothing_but_pixels(repo: Path) -> None:
    with Image.open(repo / "img.png") as photo:
        assert (photo.mode, photo.size, photo.info) == ("RGB", (451, 300), {})
    assert (repo / "img.png").stat().st_size < 300_000


def test_the_installed_command_is_our_main() -> None:
    [command] = entry_points(group="console_scripts", name="hookscope")
    assert command.value == "hookscope.__main__:main"
    assert callable(command.load())


def test_types_are_offered_to_type_checkers(repo: Path) -> None:
    assert (repo / "hookscope" / "py.typed").exists()
