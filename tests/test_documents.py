"""Every block of the README and the docs is run as it stands; every link leads somewhere.

The shell blocks of docs/ start about a hundred processes, so they are among the exhaustive tests.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
SHELL = {"|", ">", ">>", "<", "&&", "||", ";", "&"}
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[object]:
    return [
        pytest.param(
            text,
            id=f"{path.name}-{number}",
            marks=pytest.mark.exhaustive if kind == "sh" and path.name != "README.md" else (),
        )
        for path in DOCUMENTS
        if path.name != "cli.md"  # its examples are those of the commands, run elsewhere
        for number, (found, text) in enumerate(BLOCK.findall(path.read_text()), start=1)
        if found == kind
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what somebody has who sits in a clone, so that nothing is written to ours."""
    work = tmp_path / "clone"
    work.mkdir()
    shutil.copy(REPO / "img.png", work)
    shutil.copytree(REPO / "sample_models", work / "sample_models")
    return work


def commands_of(text: str) -> list[list[str]] | None:
    """The words of each line behind ``hookscope``; None where something else is run as well."""
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", "").splitlines()]
    lines = [words for words in lines if words]
    plain = all(words[0] == "hookscope" and not SHELL & set(words) for words in lines)
    return [words[1:] for words in lines] if plain and "$" not in text else None


@pytest.mark.slow
@pytest.mark.parametrize("text", blocks("sh"))
def test_shell_block_runs(text: str, folder: Path, clean_environment, run) -> None:
    commands = commands_of(text)
    for words in commands or ():
        done = run(*words, cwd=folder)
        assert done.rc == 0, (words, done.stderr)
        assert done.stdout
    if commands is not None:
        return
    scripts = str(Path(sys.executable).parent)
    environment = clean_environment | {"PATH": f"{scripts}:{clean_environment['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{text}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("text", blocks("python"))
def test_python_block_runs(text: str, folder: Path, clean_environment: dict[str, str]) -> None:
    if "resnet18.capture.safetensors" in text:  # the block reads what a command before it wrote
        words = ["capture", "--layer", "layer3.*", "--input", "img.png"]
        subprocess.run(
            [sys.executable, "-m", "hookscope", *words],
            cwd=folder,
            env=clean_environment,
            check=True,
        )
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPO.glob("*.md"), *REPO.glob("*/README.md")])
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target
