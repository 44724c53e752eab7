"""The one sink: everything that a command prints goes through here.

Results go to standard output, all else to standard error. What is printed depends on the global
options, on the environment (``NO_COLOR``, ``FORCE_COLOR``, ``TERM``, ``COLUMNS``) and on whether a
stream is a terminal; no command asks for any of that itself.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

RED, YELLOW, DIM = "1;31", "33", "2"
TRUE_COLOR = 1 << 24
_SYSTEMS: dict[int, Literal["standard", "256", "truecolor"]] = {
    16: "standard",
    256: "256",
    TRUE_COLOR: "truecolor",
}
# What a terminal would act on: a file's own text may stand in an error.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ERASE_LINE = "\r\x1b[K"
_PLAIN = str.maketrans(
    {"…": "...", "×": "x", "—": "-", "–": "-", "→": "->", "·": "*", "\u2019": "'", "µ": "u"}
)


class Out:
    """Where a command's words go, and how they look there.

    The public attributes are the global options, which the command line sets, what is said if the
    user stops the run, and the status of a sound request that fails.
    """

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.verbose = 0
        self.color: bool | None = None
        self.last_words = "Interrupted."
        self.failed = 1
        self._started = time.perf_counter()
        self._shows_status = False

    # Results

    def result(self, lines: Iterable[Text]) -> None:
        """Print a result that ``render`` has laid out for :attr:`width` and :attr:`ascii`."""
        self._wipe()
        if not self._colored(sys.stdout):
            sys.stdout.writelines(f"{line.plain}\n" for line in lines)
            return
        from rich.console import Console

        console = Console(
            file=sys.stdout,
            force_terminal=True,
            color_system=_SYSTEMS[self.colors],
            no_color=False,
            width=max(self.width or 0, 100_000),  # the lines are laid out already
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )
        for line in lines:
            console.print(line, soft_wrap=True)

    def text(self, text: str) -> None:
        """Print a result that is a plain text."""
        self._wipe()
        sys.stdout.write(f"{text}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """Print a result as one JSON document, in ASCII, so that any stream takes it."""
        from hookscope import strict_json

        self._wipe()
        sys.stdout.write(strict_json.dumps(document, indent=2) + "\n")

    @property
    def width(self) -> int | None:
        """Columns of the terminal that takes the result; None where it is no terminal."""
        return columns() if _is_terminal(sys.stdout) else None

    @property
    def window(self) -> tuple[int, int]:
        """Columns and lines that a picture may fill; those of a pipe are a usual terminal's."""
        return columns(), _side("LINES", 1, 24)

    @property
    def colors(self) -> int:
        """How many colours the result may have: 0, 16, 256, or all of 24 bits."""
        if not self._colored(sys.stdout):
            return 0
        if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
            return TRUE_COLOR
        return 256 if "256" in os.environ.get("TERM", "") else 16

    def separate(self) -> None:
        """Put an empty line between two results."""
        self.text("")

    @property
    def ascii(self) -> bool:
        """Whether the result may hold ASCII alone."""
        try:
            "├─…".encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return True
        return False

    # Words about it

    def note(self, text: str) -> None:
        """Tell what was decided or done; ``--quiet`` drops it."""
        if not self.quiet:
            self._say(text, DIM)

    def warning(self, text: str) -> None:
        """Warn of something that the result may suffer from."""
        self._say(text, YELLOW, "Warning: ")

    def error(self, text: str, hint: str = "") -> None:
        """Say what failed, and below it what to do."""
        self._say(text, RED, "Error: ")
        if hint:
            self._say(hint)

    def hint(self, text: str) -> None:
        """Say what belongs to an error and is none itself: a traceback, versions, help."""
        self._say(text.rstrip("\n"))

    def interrupted(self) -> None:
        """Leave the line on which a terminal shows ^C, and say what has become of the run."""
        self._wipe()
        if _is_terminal(sys.stderr):
            sys.stderr.write("\n")
        self._say(self.last_words)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Begin with the step ``text``, and leave no status behind when the block ends.

        What a user's own model prints meanwhile goes to standard error: the result stays alone.
        """
        self.step(text)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            self._wipe()

    def step(self, text: str) -> None:
        """Tell what is being done now.

        With ``--verbose`` that is a line with the seconds since the start. Otherwise a terminal
        shows it until the next step, or until anything else is printed.
        """
        if self.quiet:
            return
        if self.verbose:
            self._say(f"[{time.perf_counter() - self._started:7.3f} s] {text}", DIM)
        elif not self.json and _is_terminal(sys.stderr) and not _is_dumb():
            room = max(columns() - 1, 10)
            sys.stderr.write(_ERASE_LINE + text.partition("\n")[0][:room])
            sys.stderr.flush()
            self._shows_status = True

    @contextmanager
    def bar(self, text: str) -> Iterator[Callable[..., None]]:
        """Yield a function of how many are done, of how many, and a text: it shows a bar.

        The bar comes after a second and is gone when the block ends; ``--quiet``, ``--json`` and
        ``--verbose`` have none.
        """
        silent = self.quiet or self.json or self.verbose
        shows = not silent and _is_terminal(sys.stderr) and not _is_dumb()
        begun: float | None = None
        bar: Progress | None = None

        def advance(done: int, total: int, more: str = "") -> None:
            nonlocal bar, begun
            begun = begun or time.monotonic()
            if shows and bar is None and time.monotonic() - begun > 1:
                self._wipe()
                bar = _new_bar(self._colored(sys.stderr))
                bar.add_task(text, completed=done, total=total)
                bar.start()
            if bar is not None:
                bar.update(
                    bar.task_ids[0],
                    completed=done,
                    total=total,
                    description=f"{text} {more}".strip(),
                )

        try:
            yield advance
        finally:
            if bar is not None:
                bar.stop()

    def _wipe(self) -> None:
        if self._shows_status:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._shows_status = False

    def _say(self, text: str, style: str = "", label: str = "") -> None:
        self._wipe()
        text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
        if style and self._colored(sys.stderr):
            # A label alone is coloured where there is one: the sentence stays easy to read.
            body = text if label else f"\x1b[{style}m{text}\x1b[0m"
            label = label and f"\x1b[{style}m{label}\x1b[0m"
            text = body
        sys.stderr.write(f"{label}{text}\n")
        sys.stderr.flush()

    def _colored(self, stream: TextIO) -> bool:
        if self.color is not None:
            return self.color
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
            return True
        return _is_terminal(stream) and not _is_dumb()


def _new_bar(colored: bool) -> Progress:
    """A bar on standard error with the count and the time that is left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(file=sys.stderr, width=max(columns() - 1, 10), no_color=not colored)
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*parts, TimeRemainingColumn(), console=console, transient=True)


def columns() -> int:
    """Return the width that ``COLUMNS`` or the terminal tells; 80 where neither does."""
    return _side("COLUMNS", 0, 80)


def _side(variable: str, side: int, usual: int) -> int:
    given = os.environ.get(variable, "")
    if given.isdecimal() and int(given):
        return int(given)
    try:  # as shutil does it, whose import brings three kinds of compression along
        return os.get_terminal_size(sys.__stdout__.fileno())[side] or usual  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return usual


def prepare_streams() -> None:
    """Make both streams take any text: what an encoding lacks is spelled in ASCII."""
    codecs.register_error("hookscope", _spell)
    # A stream that was closed for us (>&-) is None.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="hookscope")


def finish() -> None:
    """Flush while a failure can still be caught: at the interpreter's exit it would be printed."""
    sys.stdout.flush()


def discard_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush cannot fail."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        pass


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"
