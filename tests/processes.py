"""Processes that import everything anew: run to their end, interrupted, or on a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tools.warm_process import Finished, WarmProcess

COMMAND = ("-m", "hookscope")  # the words after python

# The line that a command suggests at its end, or a program that was run.
NEXT = re.compile(r"^(?:next: |hookscope: .* Next: )(hookscope .*)$", re.MULTILINE)

DRIVER = Path(__file__).parent / "driver" / "lines.py"


def run_python(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 300,
    status: int | None = None,
) -> Finished:
    """Run ``python WORDS...`` and wait for it; with ``status``, it must end with that."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
    assert status in (None, done.returncode), done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def run_lines(
    lines: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    warm: WarmProcess,
    followed: dict[str, Finished] | None = None,
) -> list[Finished]:
    """Run lines that begin with ``hookscope``, as many as possible in one process.

    What they suggest after ``next:`` is run too, once, and put into ``followed``, if that is given.
    """
    done: list[Finished] = []
    # Of ``run`` there is one in a process: its script becomes __main__.
    for is_run, group in groupby(lines, key=lambda line: line.startswith("hookscope run ")):
        if is_run:
            ended = [warm.run(shlex.split(line)[1:], cwd, env) for line in group]
            after = [line for one in ended for line in NEXT.findall(one.stderr)]
            if followed is not None and after:
                followed |= zip(after, run_lines(after, cwd, env, warm), strict=True)
            done += ended
            continue
        asked = json.dumps({"lines": [*group], "follow": followed is not None and NEXT.pattern})
        all_at_once = warm.run([], cwd, env, asked, timeout=3600, script=DRIVER)
        assert all_at_once.rc == 0, all_at_once.stderr
        for text in all_at_once.stdout.splitlines():
            *answer, suggested = json.loads(text)
            done.append(Finished(*answer))
            if followed is not None:
                followed |= {line: Finished(*of_line) for line, *of_line in suggested}
    return done


def start_python(
    *words: object,
    cwd: Path,
    env: Mapping[str, str],
    until: Callable[[], object],
    before: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """Start ``BEFORE... python WORDS...``; return it once ``until()`` is true, or it has ended."""
    process = subprocess.Popen(
        [*before, sys.executable, *map(str, words)],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not until() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def end_by_signal(
    process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT
) -> Finished:
    """Send the process a signal, and wait for it."""
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    return Finished(process.returncode, out, err)


def in_terminal(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str],
    size: tuple[int, int] = (24, 80),
    stdout: Path | None = None,
    stderr: Path | None = None,
    status: int | None = 0,
    look: Callable[[bytes], None] = lambda seen: None,
) -> bytes:
    """Run ``python WORDS...`` in a terminal of some lines and columns; return what it shows.

    A stream with a file is no terminal. ``look`` is called with what has come so far, whenever
    there is more of it.
    """
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    files = [file and os.open(file, os.O_WRONLY | os.O_CREAT) for file in (stdout, stderr)]
    out, err = (theirs if file is None else file for file in files)
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={"TERM": "xterm", **env},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
    )
    for end in {theirs, out, err}:
        os.close(end)
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not more:
            break
        seen += more
        look(seen)
    os.close(ours)
    ended = process.wait(timeout=300)
    assert status is None or ended == status, seen
    return seen
