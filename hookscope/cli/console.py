"""The console: results go to standard output, everything else to standard error."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Literal, TextIO

from hookscope.cli.progress_bar import bar_label, new_bar
from hookscope.errors import RequestError
from hookscope.escapes import bounded, visible, visible_lines
from hookscope.files.end_signals import end_if_asked

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from hookscope.views.display import Shown
    from hookscope.views.text.table import CollectedTables
    from hookscope.views.text.text_table import TextOptions

RED, YELLOW, DIM = "1;31", "33", "2"
TRUE_COLOR = 1 << 24
_LONGEST_WARNING = 1000  # characters
_SYSTEMS: dict[int, Literal["standard", "256", "truecolor"]] = {
    16: "standard",
    256: "256",
    TRUE_COLOR: "truecolor",
}
_ERASE_LINE = "\r\x1b[K"
_STANDARD_HANDLES = (-11, -12)  # standard output, standard error
_PROCESS_ESCAPES = 0x0004  # ENABLE_VIRTUAL_TERMINAL_PROCESSING
# What is not broken: a quoted command, one after a colon up to the end, a word.
_PARTS = re.compile(r"'hookscope [^']*'\S*|\S+: hookscope .*|\S+")
_PLAIN = str.maketrans(
    {"…": "...", "×": "x", "—": "-", "–": "-", "→": "->", "·": "*", "\u2019": "'", "µ": "u"}
)


class Console:
    """Prints results, notes and errors in the form that the streams and options ask for."""

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.verbose = 0
        self.color: bool | None = None
        self.sort: str | None = None
        self.top: int | None = None
        self.precision: int | None = None
        self.csv = False
        self.markdown = False
        self.interrupt_message = "Interrupted."
        self.failed = 1
        self._started = time.perf_counter()
        self._shows_status = False
        self._held: list[str] | None = None
        self._shows_bar = False
        self._tables: CollectedTables | None = None  # with --csv
        self._csv_columns: tuple[str, ...] | None = None  # of the table that was printed

    # Results

    def show(self, result: Shown, file: str | None = None) -> None:
        """Print a result: as text, with ``--csv`` its table, or with ``--json`` as a document."""
        from hookscope.views import display

        end_if_asked()
        if self.json:
            self.document(display.document(result, file))
        else:
            self.result(display.text(result, self.text_options))

    def show_each(self, results: Iterable[Shown]) -> None:
        """Print several results, with an empty line between two."""
        for number, result in enumerate(results):
            if number:
                self.separate()
            self.show(result)

    def result(self, lines: Iterable[Text]) -> None:
        """Print lines that are laid out for :attr:`text_options`, or with ``--csv`` their table."""
        self._wipe()
        if self.csv:
            self._print_csv(lines)
            return
        if self.markdown or not self._colored(sys.stdout):
            sys.stdout.writelines(f"{line.plain}\n" for line in lines)
            return
        from rich.console import Console as RichConsole

        console = RichConsole(
            file=io.StringIO(),  # with stdout it would end the process at a closed pipe
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
            with console.capture() as captured:
                console.print(line, soft_wrap=True)
            sys.stdout.write(captured.get())

    def _print_csv(self, lines: Iterable[Text]) -> None:
        """Print the table of a result, below that of an earlier one if it has the same columns."""
        from hookscope.views.text.table import csv_text

        for _ in lines:  # a view collects its tables while it makes the other lines
            pass
        table = None if self._tables is None else self._tables.take()
        if table is None:
            if self._csv_columns is None:
                raise RequestError("This result has no table.", "Leave out --csv, or add --json.")
            return
        columns = tuple(column.title for column in table.pipe_columns)
        if self._csv_columns in (None, columns):
            header = self._csv_columns is None
            sys.stdout.write(csv_text(table, self.precision, header=header))
            self._csv_columns = columns

    def text(self, text: str) -> None:
        """Print a result that is plain text."""
        self._wipe()
        sys.stdout.write(f"{text}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """Print a result as one JSON document, in ASCII, which every stream accepts."""
        from hookscope.files import strict_json

        self._wipe()
        sys.stdout.write(strict_json.dumps(document, indent=2) + "\n")

    @property
    def width(self) -> int | None:
        """Columns of the terminal of standard output; None if it is not a terminal."""
        return columns() if _is_terminal(sys.stdout) else None

    @property
    def text_options(self) -> TextOptions:
        """How views lay out their text for standard output."""
        from hookscope.views.text.table import CollectedTables
        from hookscope.views.text.text_table import MARKDOWN, TextOptions

        if self.csv and self._tables is None:
            self._tables = CollectedTables()
        width = MARKDOWN.width if self.markdown else self.width
        return TextOptions(
            None if self.csv else width,
            self.ascii,
            self.verbose > 0,
            precision=self.precision,
            sort=self.sort,
            top=self.top,
            markdown=self.markdown,
            tables=self._tables,
        )

    @property
    def window(self) -> tuple[int, int]:
        """Columns and lines that a picture may fill; a pipe has those of a usual terminal."""
        return columns(), _side("LINES", 1, 24)

    @property
    def colors(self) -> int:
        """How many colours the result may have: 0, 16, 256, or 24 bits."""
        if not self._colored(sys.stdout):
            return 0
        if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
            return TRUE_COLOR
        return 256 if "256" in os.environ.get("TERM", "") else 16

    def separate(self) -> None:
        """Print an empty line between two results."""
        if not self.csv:
            self.text("")

    @property
    def ascii(self) -> bool:
        """Whether the result must be ASCII."""
        try:
            "├─…".encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return True
        return False

    # Messages

    def note(self, text: str) -> None:
        """Print a note on a default or a step; ``--quiet`` suppresses it."""
        if self._held is not None:
            self._held.append(text)
        elif not self.quiet:
            self._say(text, DIM)

    @contextmanager
    def defer_notes(self) -> Iterator[None]:
        """Defer notes to the end of the block: a later option may be ``--quiet``."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for text in held:
                self.note(text)

    def warning(self, text: str) -> None:
        """Print a warning."""
        self._say(bounded(visible(text), _LONGEST_WARNING), YELLOW, "Warning: ")

    def error(self, text: str, hint: str = "") -> None:
        """Print an error, and its hint on further lines."""
        self._say(text, RED, "Error: ")
        for line in hint.split("\n") if hint else ():
            self._say(line)

    def hint(self, text: str) -> None:
        """Print a text that belongs to an error: a traceback, versions, help."""
        self._wipe()
        sys.stderr.write(visible_lines(text.rstrip("\n")) + "\n")
        sys.stderr.flush()

    def interrupted(self) -> None:
        """Print the message for Ctrl-C, on a new line after the ^C of a terminal."""
        self._wipe()
        if _is_terminal(sys.stderr):
            sys.stderr.write("\n")
        self._say(self.interrupt_message)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show the step ``text`` during the block, whose prints go to standard error."""
        self.step(text)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            self._wipe()

    def step(self, text: str) -> None:
        """Show the current step: a line with ``--verbose``, else a text that is wiped later."""
        end_if_asked()
        if self.quiet or self._shows_bar:
            return
        if self.verbose:
            self._say(f"[{time.perf_counter() - self._started:7.3f} s] {text}", DIM)
        elif not self.json and _is_terminal(sys.stderr) and not _is_dumb():
            room = max(columns(sys.__stderr__) - 1, 10)
            sys.stderr.write(_ERASE_LINE + visible(text)[:room])
            sys.stderr.flush()
            self._shows_status = True

    @contextmanager
    def bar(self, text: str) -> Iterator[Callable[..., None]]:
        """Yield a function that updates a progress bar: done, total, and an optional text.

        The bar appears after a second. Of the text it shows the parts between commas that fit.
        """
        is_hidden = self.quiet or self.json or self.verbose
        shows = not is_hidden and _is_terminal(sys.stderr) and not _is_dumb()
        begun: float | None = None
        bar: Progress | None = None

        def advance(done: int, total: int, more: str = "") -> None:
            nonlocal bar, begun
            end_if_asked()
            begun = begun or time.monotonic()
            if not shows or time.monotonic() - begun <= 1:
                return
            if bar is None:
                self._wipe()
                bar = new_bar(self._colored(sys.stderr))
                bar.add_task(text)
                self._shows_bar = True
            bar.console.width = width = max(columns(sys.__stderr__) - 1, 10)
            label = bar_label(text, more, total, width)
            bar.update(bar.task_ids[0], completed=done, total=total, description=label)
            bar.start()  # has an effect only the first time

        try:
            yield advance
        finally:
            self._shows_bar = False
            if bar is not None:
                bar.stop()

    def _wipe(self) -> None:
        if self._shows_status:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._shows_status = False

    def _say(self, text: str, style: str = "", label: str = "") -> None:
        self._wipe()
        text = visible(text)
        if _is_terminal(sys.stderr):
            width = columns(sys.__stderr__) - 1  # some terminals wrap a line that fills the row
            text = _wrapped(f"{label}{text}", width).removeprefix(label)
        if style and self._colored(sys.stderr):
            # If there is a label, only the label is colored.
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


def _wrapped(text: str, width: int) -> str:
    """Break a message at spaces into lines; a command that is to be copied stays in one piece.

    >>> print(_wrapped("Error: no such layer. See 'hookscope tree net.py:Net --depth 1'.", 30))
    Error: no such layer. See
      'hookscope tree net.py:Net --depth 1'.
    """
    if len(text) <= width:
        return text
    lines, line = [], ""
    for part in _PARTS.findall(text):
        joined = f"{line} {part}" if line else part
        if line.strip() and len(joined) > width and len(f"  {part}") <= width:
            lines.append(line)
            joined = f"  {part}"
        line = joined
    return "\n".join([*lines, line])


def columns(stream: TextIO | None = None) -> int:
    """Return the width from ``COLUMNS`` or a stream's terminal, or 80; None is standard output."""
    return _side("COLUMNS", 0, 80, stream)


def _side(variable: str, side: int, usual: int, stream: TextIO | None = None) -> int:
    setting = os.environ.get(variable, "")
    if setting.isdecimal() and int(setting):
        return int(setting)
    try:  # like shutil, whose import would load compression modules
        return os.get_terminal_size((stream or sys.__stdout__).fileno())[side] or usual  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return usual


def prepare_streams() -> Callable[[], None]:
    """Let both streams accept any text: characters that an encoding lacks become ASCII."""
    codecs.register_error("hookscope", _spell)
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    errors = {name: getattr(stream, "errors", None) for name, stream in before.items()}
    # A closed stream (>&-) is None.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Not \r\n on Windows: bash would read the \r of a completion script as a command.
        _reconfigure(stream, "hookscope", "" if _is_terminal(stream) else "\n")
    if not enable_escape_sequences():
        os.environ.setdefault("TERM", "dumb")

    def restore() -> None:
        for name, stream in before.items():
            if stream is None:
                getattr(sys, name).close()
                setattr(sys, name, None)
            else:
                _reconfigure(stream, errors[name], None)

    return restore


def _reconfigure(stream: TextIO, errors: str | None, newline: str | None) -> None:
    """Set the error handler of a stream and its end of line; an empty one stays as it is."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=errors, **({} if newline == "" else {"newline": newline}))


def finish() -> None:
    """Flush standard output while an error can still be handled."""
    sys.stdout.flush()


def discard_output() -> None:
    """Redirect standard output to nothing, so that the interpreter's last flush cannot fail."""
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


def enable_escape_sequences() -> bool:
    """Return whether escape sequences can be written to a terminal, after enabling them."""
    if sys.platform == "win32":
        import ctypes
        from ctypes import wintypes

        kernel32 = ctypes.WinDLL("kernel32")
        kernel32.GetStdHandle.restype = wintypes.HANDLE  # which has 64 bits, and the default 32
        enabled = False
        for number in _STANDARD_HANDLES:
            handle = wintypes.HANDLE(kernel32.GetStdHandle(wintypes.DWORD(number & 0xFFFFFFFF)))
            mode = wintypes.DWORD()
            if kernel32.GetConsoleMode(handle, ctypes.byref(mode)):  # fails for a file or a pipe
                wanted = wintypes.DWORD(mode.value | _PROCESS_ESCAPES)
                enabled |= bool(kernel32.SetConsoleMode(handle, wanted))
        return enabled
    return True
