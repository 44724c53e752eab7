"""Without its extras, hookscope does all that needs none of them.

The tests run with the extras. Here, a folder has links to the packages of a plain installation
alone, and commands run with that folder in place of the installed packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.processes import DRIVER

pytestmark = pytest.mark.slow

# What is asked of all modules, and which of them need a package that is not there.
IMPORT_ALL = """
import importlib, json, pkgutil
import hookscope
missing = []
for module in pkgutil.walk_packages(hookscope.__path__, "hookscope.", missing.append):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception:
            missing.append(module.name)
print(json.dumps(sorted(set(missing))))
"""
# They are imported only for what needs an extra, whose name the error has.
OF_EXTRAS = {
    "hookscope.commands.pytest_plugin",  # pytest loads it
    "hookscope.execution.device_dispatch",
    "hookscope.sources.hub_downloads",
    "hookscope.sources.timm",
    "hookscope.sources.transformers",
}
COMMANDS = (
    "tree resnet18",
    "capture resnet18 --layer layer4.* --input img.png -o a.safetensors",
    "grads resnet18 --layer fc --loss kl --target 3 --shape 2x3x64x64 -o b.safetensors",
    "cam resnet18 --input img.png -o cam.png",
    "diff resnet18 resnet18 --local --shape 2x3x64x64",
    "check sample_models/digits.py:trained --input sample_models/five.png",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    """A folder with the packages that hookscope requires, and those that they require."""
    folder = tmp_path_factory.mktemp("packages")
    required = [text for text in metadata.requires("hookscope") or () if "extra ==" not in text]
    found: set[str] = set()
    while required:
        one = re.match(r"[\w.-]+", required.pop())
        assert one is not None
        name = one.group(0).lower()
        if name in found:
            continue
        found.add(name)
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system, or another Python
            continue
        required += [text for text in installed.requires or () if "extra ==" not in text]
        for file in installed.files or ():
            link = folder / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(installed.locate_file(file.parts[0]))))
    (folder / "hookscope").symlink_to(repo / "hookscope")
    return folder


def python(packages: Path, *words: str, folder: Path | None = None, stdin: str = "") -> str:
    """Run Python with these packages alone; what it printed."""
    environment = os.environ | {"PYTHONPATH": str(packages)}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        [sys.executable, "-S", *words],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_import_without_extras_but_for_those_of_extras(packages: Path) -> None:
    assert set(json.loads(python(packages, "-c", IMPORT_ALL))) == OF_EXTRAS


def test_commands_run_without_extras(packages: Path, samples_folder: Path) -> None:
    lines = json.dumps({"lines": [f"hookscope {one}" for one in COMMANDS], "follow": ""})
    answers = python(packages, str(DRIVER), folder=samples_folder, stdin=lines).splitlines()
    for answer in map(json.loads, answers):
        assert answer[0] == 0, answer
    assert len(answers) == len(COMMANDS)
