"""Running many commands that fail, in one process, as that is what takes the time."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import run_lines
from tools.warm_process import WarmProcess

MODELS = Path(__file__).with_name("broken_models.py")


def load_models() -> ModuleType:
    """Import ``broken_models.py`` anew."""
    spec = importlib.util.spec_from_file_location("broken_models", MODELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


@pytest.fixture(scope="module")
def commands(
    tmp_path_factory: pytest.TempPathFactory,
    bare_environment: dict[str, str],
    warm_process: WarmProcess,
) -> Commands:
    """Run command lines in one process, in a folder that holds ``broken_models.py``."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(MODELS, folder)
    home = tmp_path_factory.mktemp("home")
    places = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(home))

    def run(*lines: str, cwd: Path = folder) -> list[Said]:
        done = run_lines(lines, cwd, bare_environment | places, warm_process)
        return [Said(one.rc, one.stdout, one.stderr) for one in done]

    return run
