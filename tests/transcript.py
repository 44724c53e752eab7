"""Transcripts: commands, with what they print and how they end, in files that tests run again.

A file of ``tests/transcripts`` is read from its first line on, in a folder that at first holds what
a clone has: ``img.png`` and ``sample_models``.

    # A comment.
    $ hookscope tree sample_models/digits.py:trained --depth 0
      what is on standard output, after two blanks
    ! what is on standard error
    [2]
    80$ hookscope tree sample_models/digits.py:trained
      what a terminal of 80 columns shows
    $ head -c 100 sample_models/features/shard-00000.safetensors > cut.safetensors
    >>> hookscope.load("cut.safetensors")
    ! StoreError: the message and the hint of an error

An exit status stands there unless it is 0. A line of another program is run by ``sh``. Statements
of Python that follow each other share their names, and know ``hookscope`` and ``torch``.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.warm_process import REPO, WarmProcess

PROMPT = re.compile(r"(\d*\$|>>>|\.\.\.) (.*)")
NUMBER = re.compile(r"-?(?:\d[\d,]*\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)")
RELATIVE, ABSOLUTE = 0.02, 1e-5  # what a number may differ by: other processors round otherwise

# What differs between two runs of the same code.
_MASKS = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\b\d+\.\d+\.\d+(\+\w+)?(\.dev\w*)?\b"), "VERSION"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b\d+([.,]\d+)*(e[+-]?\d+)? ?([nuµm]?s|min|h|(rows|[GMk]?B)/s)\b"), "DURATION"),
    (re.compile(r"(decode|forward|write) \d+%"), r"\1 SHARE"),
    (re.compile(r'("(waited_for_\w+|start|own|forward|backward)": )[\d.e+-]+'), r"\1MASKED"),
    (re.compile(r'("[\w.]*(seconds|time|duration|started|ended|created|pid|host|elapsed)[\w.]*": )'
                r'("[^"]*"|[\d.e+-]+)'), r"\1MASKED"),
    (re.compile(r"\b\d+:\d\d:\d\d\b|-:--:--"), "CLOCK"),
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What an entry printed, and how it ended."""

    out: str = ""
    err: str = ""
    status: int = 0
    shown: str = field(default="", compare=False)  # the output before times are masked

    def lines(self) -> list[str]:
        """Return what stands in a transcript below the command."""
        out = [f"  {line}".rstrip() for line in self.out.splitlines()]
        err = [f"! {line}".rstrip() for line in self.err.splitlines()]
        lines = [*out, *err, *([f"[{self.status}]"] if self.status else [])]
        return "\n".join(lines).rstrip("\n").splitlines()


@dataclass
class Entry:
    """A command or a statement: its prompt, its lines as typed, what is expected below them."""

    prompt: str
    typed: list[str]
    expected: list[str] = field(default_factory=list)

    @property
    def columns(self) -> int | None:
        """The width of the terminal on which it runs."""
        return int(self.prompt[:-1]) if self.prompt[:-1].isdigit() else None

    @property
    def command(self) -> str:
        """The line after the prompt."""
        return self.typed[0].partition("$ ")[2]

    def words(self) -> list[str]:
        """Return the words of a command."""
        return shlex.split(self.command)


def read(text: str) -> list[Entry | str]:
    """Return the entries of a transcript, and its comments and blank lines as they stand."""
    parts: list[Entry | str] = []
    for line in text.splitlines():
        last = parts[-1] if parts else ""
        if match := PROMPT.match(line):
            if match[1] == "..." and isinstance(last, Entry):
                last.typed.append(line)
            else:
                parts.append(Entry(match[1], [line]))
        elif line.startswith("#") or not isinstance(last, Entry):
            parts.append(line)
        else:
            last.expected.append(line)
    for part in parts:
        while isinstance(part, Entry) and part.expected and not part.expected[-1]:
            part.expected.pop()
    return parts


def written(parts: list[Entry | str]) -> str:
    """Return the text of a transcript: a blank line after what an entry printed."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += [*part.typed, *part.expected]
            if part.expected:
                lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def same(expected: list[str], said: list[str]) -> bool:
    """Whether two outputs are equal, but for the last digits of numbers."""
    return len(expected) == len(said) and all(map(_same_line, expected, said))


def _same_line(expected: str, said: str) -> bool:
    if expected == said:
        return True
    texts = [" ".join(NUMBER.sub("0.0", line).split()) for line in (expected, said)]
    if texts[0] != texts[1]:
        return False
    pairs = zip(*(NUMBER.findall(line) for line in (expected, said)), strict=True)
    numbers = [tuple(float(number.replace(",", "")) for number in pair) for pair in pairs]
    return all(math.isclose(*pair, rel_tol=RELATIVE, abs_tol=ABSOLUTE) for pair in numbers)


class Session:
    """Runs the entries of a transcript in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], warm: WarmProcess) -> None:
        self._folder, self._warm = folder, warm
        bin_folder = str(Path(sys.executable).parent)
        path = os.pathsep.join([bin_folder, environment.get("PATH", "")])
        self._environment = {**environment, "LANG": "C.UTF-8", "PATH": path}

    def run(self, parts: list[Entry | str]) -> Iterator[tuple[Entry, Said]]:
        """Yield each entry with what it says now."""
        block: list[Entry] = []
        for part in [*parts, None]:
            if isinstance(part, Entry) and part.prompt == ">>>":
                block.append(part)
            elif part is None or isinstance(part, Entry):
                yield from zip(block, self._run_python(block), strict=True)
                block = []
                if part is not None:
                    yield part, self._run_command(part)

    def _run_command(self, entry: Entry) -> Said:
        words = entry.words()
        given = {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, given[name] = words.pop(0).partition("=")
        environment = {**self._environment, **given}
        if words[0] != "hookscope" or {"|", ">", "<"} & set(words):
            done = subprocess.run(
                ["sh", "-c", entry.command],
                cwd=self._folder, env=environment, text=True, capture_output=True,
            )  # fmt: skip
            return self._masked(done.stdout, done.stderr, done.returncode)
        if entry.columns is None:
            ended = self._warm.run(words[1:], self._folder, environment)
            return self._masked(ended.stdout, ended.stderr, ended.rc)
        environment |= {"TERM": "xterm-256color", "NO_PAGER": "1"}
        status, got = self._warm.run_on_terminal(
            words[1:], self._folder, environment, entry.columns
        )
        return self._masked(_last_lines(got.decode()), "", status)

    def _run_python(self, block: list[Entry]) -> list[Said]:
        if not block:
            return []
        statements = ["\n".join(line[4:] for line in entry.typed) + "\n" for entry in block]
        script = self._folder / "_statements.py"
        script.write_text(_STATEMENTS.format(statements=statements), "utf-8")
        done = self._warm.run([], self._folder, self._environment, script=script)
        script.unlink()
        assert not done.rc, done.stderr
        parts = done.stdout.split(_END)[1:]
        return [self._masked(*part.split(_ERRORS)) for part in parts]

    def _masked(self, out: str, err: str, status: int = 0) -> Said:
        return Said(self._mask(out), self._mask(err), status, out)

    def _mask(self, text: str) -> str:
        home = self._environment["HOME"]
        for place, name in ((str(self._folder), "FOLDER"), (home, "HOME"), (str(REPO), "REPO")):
            text = text.replace(place, name)
        for pattern, mask in _MASKS:
            text = pattern.sub(mask, text)
        return text


_END, _ERRORS = "\x1c", "\x1d"
_STATEMENTS = """
import contextlib, io, warnings
import hookscope, torch
from torch import nn

names = {{"hookscope": hookscope, "torch": torch, "nn": nn}}
warnings.simplefilter("always")
warnings.showwarning = lambda text, kind, *_: print(f"{{kind.__name__}}: {{text}}", file=err)
for statement in {statements!r}:
    out, err = io.StringIO(), io.StringIO()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(compile(statement, "<transcript>", "single"), names)
        except BaseException as error:
            print(f"{{type(error).__name__}}: {{error}}", file=err)
    print("\\x1c" + out.getvalue() + "\\x1d" + err.getvalue(), end="")
"""


def _last_lines(said: str) -> str:
    """The lines as they stand at the end, without what a carriage return replaces, such as bars."""
    lines = said.replace("\r\n", "\n").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2] for line in lines]
    return "\n".join(line.rstrip() for line in plain if line.strip() and "\u2501" not in line)
