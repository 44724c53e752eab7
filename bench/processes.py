"""Runs a command as a process and tells how long it took and how much memory it took at most."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

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
    """Run ``command`` in an empty folder and return what it took.

    This process must itself be small: on Linux a child starts out with its parent's peak.

    Raises:
        SystemExit: the command failed; its own words are shown.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        start = perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            memory = usage.ru_maxrss
        else:
            process.wait()
            memory = 0
        took = perf_counter() - start
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')}")
        return Cost(took, memory)


def pairs(ours: tuple[str, ...], plain: tuple[str, ...], count: int) -> list[tuple[Cost, Cost]]:
    """Run the two in turn, ``count`` times each, after one of each to warm the disk's cache."""
    cost(ours), cost(plain)
    return [(cost(ours), cost(plain)) for _ in range(count)]
