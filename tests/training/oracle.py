"""The oracle of these tests: the same program under plain ``python``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NOTE = re.compile(rb"^hookscope: the script did not import torch.*\n", re.MULTILINE)
OURS = ("-m", "hookscope", "run")


@dataclass(frozen=True)
class Ending:
    """What a process wrote, and its exit status; negative for the signal that ended it."""

    stdout: bytes
    stderr: bytes
    status: int


def both(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    flags: Sequence[str] = (),
    ours: Sequence[str] = OURS,
    stdin: bytes = b"",
    merged: bool = False,
) -> tuple[Ending, Ending]:
    """Run ``python FLAGS WORDS`` and ``python FLAGS -m hookscope run WORDS`` at the same time.

    ``merged`` sends both streams to one pipe, which shows the order of what they got.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, *flags, *command, *words],
            cwd=folder,
            env={**environment, "HOOKSCOPE_QUIET": "1"},  # where the record is, is not asked
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )
        for command in ((), ours)
    ]
    endings = []
    for process in processes:
        out, err = process.communicate(stdin, timeout=300)
        out, err = (
            re.sub(rb"0x[0-9a-f]+", b"ADDRESS", NOTE.sub(b"", text or b"")) for text in (out, err)
        )
        endings.append(Ending(out, err, process.returncode))
    return endings[0], endings[1]
