"""Runs a command as a process and tells how long it took and how much memory it took at most."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

LAUNCH = Path(__file__).with_name("launch.py")
IMAGE = Path(__file__).resolve().parent.parent / "img.png"
SCRIPT = Path(sys.executable).with_name("hookscope.exe" if os.name == "nt" else "hookscope")
HOOKSCOPE = (str(SCRIPT),) if SCRIPT.exists() else (sys.executable, "-m", "hookscope")


def python(code: str) -> tuple[str, ...]:
    """The command that runs ``code`` in a new interpreter."""
    return (sys.executable, "-c", code)


@dataclass(frozen=True)
class Cost:
    """What one process took: ``seconds``, and at most ``memory`` (kilobytes; bytes on macOS)."""

    seconds: float
    memory: int


def cost(command: tuple[str, ...]) -> Cost:
    """Run ``command`` in a folder of its own and return what it, or a process of its own, took.

    Raises:
        SystemExit: the command failed; its own words are shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        launch = (sys.executable, "-I", "-S", str(LAUNCH), str(printed), *command)
        launched = subprocess.run(launch, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        status, seconds, memory = launched.stdout.split()
        if int(status):
            sys.exit(f"{' '.join(command)} failed:\n{printed.read_text(errors='replace')}")
        return Cost(float(seconds), int(memory))


def pairs(ours: tuple[str, ...], plain: tuple[str, ...], count: int) -> list[tuple[Cost, Cost]]:
    """Run the two in turn, ``count`` times each, after one of each to warm the disk's cache."""
    cost(ours), cost(plain)
    return [(cost(ours), cost(plain)) for _ in range(count)]
