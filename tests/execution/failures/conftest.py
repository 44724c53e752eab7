"""Running many commands that fail, in one process, as that is what takes the time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.execution.failures.broken_models import TEXT
from tests.processes import run_lines
from tools.warm_process import WarmProcess


@dataclass(frozen=True)
class Said:
    """What a command ended with and wrote."""

    status: int
    stdout: str
    stderr: str

    def line(self, label: str) -> str:
        """The line of standard error that begins with a label; empty if there is none."""
        lines = self.stderr.splitlines()
        return next((x.removeprefix(f"{label}: ") for x in lines if x.startswith(f"{label}: ")), "")


Commands = Callable[..., list[Said]]


@pytest.fixture(scope="session")
def models_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file ``broken_models.py`` of a user."""
    file = tmp_path_factory.mktemp("models") / "broken_models.py"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="session")
def models(models_file: Path) -> ModuleType:
    """The module in that file."""
    spec = importlib.util.spec_from_file_location("broken_models", models_file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def commands(
    models_file: Path, tmp_path_factory, bare_environment: dict[str, str], warm_process: WarmProcess
) -> Commands:
    """Run command lines in one process, in the folder that holds ``broken_models.py``."""
    home = str(tmp_path_factory.mktemp("home"))
    places = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home)

    def run(*lines: str, cwd: Path = models_file.parent) -> list[Said]:
        done = run_lines(lines, cwd, bare_environment | places, warm_process)
        return [Said(one.rc, one.stdout, one.stderr) for one in done]

    return run
