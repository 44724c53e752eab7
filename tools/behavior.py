"""Records what hookscope does for its users, to compare two versions of its code.

``python -m tools.behavior record FOLDER`` runs the installed hookscope and writes text files;
``python -m tools.behavior compare BEFORE AFTER`` prints what differs, and exits 1 if anything does.
Recorded are

- every example of the help: on a terminal of 80 and of 120 columns, in a pipe, and with ``--json``,
  each with the files that it writes (values of tensors and pixels by their SHA-256),
- ``-h`` and ``--help`` of every command, and completions of a fixed list of words,
- uses that are wrong, with their messages and exit statuses (``tools/wrong_uses.txt``),
- the signatures of all public names, and the examples of their docstrings.

Versions, times and the folder of the run are masked. Nothing is imported of hookscope but its
public names: the list of commands and examples is read from ``docs/cli.md``.
"""

from __future__ import annotations

import difflib
import doctest
import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tools.warm_process import WarmProcess

REPO = Path(__file__).resolve().parent.parent
PAGE = REPO / "docs" / "cli.md"
WRONG = Path(__file__).with_name("wrong_uses.txt")
FORMS = ("terminal80", "terminal120", "pipe", "json")
# Lines as typed so far; a space at the end asks for the next word.
COMPLETED = [
    "c",
    "capture ",
    "capture -",
    "capture --l",
    "capture resnet1",
    "capture --what ",
    "grads --loss ",
    "capture --weights ",
    "capture --input img",
    "tree --sort ",
    "tree vit",
    "cam --by ",
    "cam -",
    "check --only ",
    "check --skip n",
    "diff ",
    "diff --s",
    "extract --reduce ",
    "extract --",
    "help ",
    "help l",
    "plot --kind ",
    "plot ",
    "report ",
    "show --",
    "sweep --edit ",
    "sweep --metric ",
    "lens --",
    "attribute --by ",
    "similar --measure ",
    "probe --",
    "top --",
    "export ",
    "models r",
    "config ",
    "completion ",
    "run --",
    "step --optimizer ",
    "trace --",
    "verify ",
    "ablate --by ",
    "filters --",
    "gradcheck --",
    "--",
    "x",
]
TEXTS = (".json", ".html", ".svg", ".csv", ".txt", ".xml", ".jsonl", ".mmd", ".dot")

# What differs between two runs of the same code.
_MASKS = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\b\d+\.\d+\.\d+(\+\w+)?(\.dev\w*)?\b"), "VERSION"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"[\d.,]+(e[+-]?\d+)? ?([nuµm]?s|min|h|(rows|[GMk]?B)/s)\b"), "DURATION"),
    (re.compile(r"(decode|forward|write) \d+%"), r"\1 SHARE"),
    (re.compile(r'(", line )\d+(, in )'), r"\1N\2"),  # of a traceback
    (re.compile(r'("(waited_for_\w+|start|own|forward|backward)": )[\d.e+-]+'), r"\1MASKED"),
    (re.compile(r'("[\w.]*(seconds|time|duration|started|ended|created|pid|host|elapsed)[\w.]*": )'
                r'("[^"]*"|[\d.e+-]+)'), r"\1MASKED"),
    (re.compile(r"\b\d+:\d\d:\d\d\b|-:--:--"), "CLOCK"),
)  # fmt: skip


def record(folder: Path) -> None:
    """Write what hookscope does now into an empty folder."""
    folder.mkdir(parents=True)
    _write(folder / "api.txt", "\n".join(_signatures()))
    commands, examples = _read_page()
    with tempfile.TemporaryDirectory() as name, Place(Path(name)) as place:
        record_examples(folder / "examples", examples, place)
        place.fresh()
        for command in commands:
            for flag in ("-h", "--help"):
                said = place.run([*command.split(), flag], "pipe")
                _write(folder / "help" / f"{command or 'hookscope'} {flag}.txt", said)
        _write(folder / "completion.txt", "\n".join(map(place.complete, COMPLETED)))
        wrong = [line for line in WRONG.read_text("utf-8").splitlines() if line.strip()]
        parts = [f"$ hookscope {line}\n{place.run(shlex.split(line), 'pipe')}" for line in wrong]
        _write(folder / "wrong_uses.txt", "\n".join(parts))
    _write(folder / "docstrings.txt", "\n".join(_docstring_runs()))


def compare(before: Path, after: Path) -> bool:
    """Print what differs; return whether anything does."""
    names = [{p.relative_to(f) for p in f.rglob("*") if p.is_file()} for f in (before, after)]
    differs = False
    for name in sorted(names[0] | names[1]):
        texts = [
            (folder / name).read_text("utf-8") if name in own else None
            for folder, own in zip((before, after), names, strict=True)
        ]
        if texts[0] != texts[1]:
            differs = True
            old, new = ((text or "").splitlines() for text in texts)
            print(f"== {name}")
            print(*list(difflib.unified_diff(old, new, lineterm="", n=1))[2:], sep="\n")
    return differs


class Place:
    """A folder with the files that examples name, in which commands run.

    With ``with``: the process that runs them ends with the block.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.work = root / "work"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOOKSCOPE", "COLUMNS"))}
        places = {"HOME": str(root), "XDG_CACHE_HOME": str(root / "cache")}
        self._environment = {**kept, "LANG": "C.UTF-8", **places}
        self._process = WarmProcess(self._environment)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.close()

    def fresh(self) -> Place:
        """Make the folder anew."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        shutil.copy(REPO / "img.png", self.work)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPO / "sample_models", self.work / "sample_models", ignore=ignored)
        return self

    def masked(self, text: str) -> str:
        """Return a text without what differs between two runs."""
        return _masked(text, self._root)

    def run(self, words: Sequence[str], form: str, **environment: str) -> str:
        """Return what a command prints, and its exit status."""
        given = {**self._environment, **environment}
        if form.startswith("terminal"):
            given |= {"TERM": "xterm-256color", "NO_PAGER": "1"}
            columns = int(form.removeprefix("terminal"))
            status, got = self._process.run_on_terminal(words, self.work, given, columns)
            said = _without_times(words, got.decode())
            return self.masked(f"{_last_lines(said)}\nexit status {status}\n")
        status, out, err = astuple(self._process.run(words, self.work, given))
        out = _without_times(words, out)
        return self.masked(f"{out}--- standard error\n{err}--- exit status {status}\n")

    def complete(self, line: str) -> str:
        """Return the words that complete a line, as bash asks for them."""
        typed = ["hookscope", *line.split(" ")]
        words = {"COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}
        return f"$ hookscope {line}\n" + self.run(
            [], "pipe", _HOOKSCOPE_COMPLETE="bash_complete", **words
        )


def _masked(text: str, root: Path) -> str:
    text = text.replace(str(root / "work"), "FOLDER").replace(str(root), "ROOT")
    text = text.replace(str(REPO), "REPO")
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def _read_page() -> tuple[list[str], list[str]]:
    """The commands and the examples of the reference page."""
    text = PAGE.read_text("utf-8")
    commands = [name.strip() for name in re.findall(r"^## hookscope\b(.*)$", text, re.MULTILINE)]
    examples = re.findall(r"^  hookscope ((?:.|\\\n)*?)$", text, re.MULTILINE)
    return commands, [shlex.join(shlex.split(line)) for line in examples]


def record_examples(folder: Path, examples: list[str], place: Place) -> None:
    """Write what each example does in each form, and the files that it writes."""
    for form in FORMS:
        place.fresh()
        for number, line in enumerate(examples, 1):
            if text := _recorded(shlex.split(line), form, place):
                _write(folder / form / f"{number:03}.txt", text)


def _recorded(words: list[str], form: str, place: Place) -> str:
    """What a command prints and writes; empty if it has no such form."""
    if form == "json":
        if "--json" in words or words[0] in ("completion", "help"):
            return ""
        words = [*words, "--json"]
    before = _state(place.work)
    said = place.run(words, form)
    after = _state(place.work)
    made = [path for path in sorted(after) if after[path] != before.get(path)]
    parts = [f"$ hookscope {shlex.join(words)}\n{said}"]
    if words[0] != "run":  # how many steps a run writes at a time depends on the time
        parts += [f"--- wrote {place.masked(path)}\n{_described(place, path)}" for path in made]
    return "\n".join(parts)


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    files = (
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in files
    }


def _described(place: Place, name: str) -> str:
    """What a file contains, as text."""
    path = place.work / name
    if path.suffix == ".safetensors":
        return place.masked("\n".join(_tensors(path)))
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            pixels = hashlib.sha256(image.convert("RGBA").tobytes()).hexdigest()
            return place.masked(f"{image.size} {pixels} {sorted(image.info.items())}")
    data = path.read_bytes()
    if path.suffix in TEXTS:
        return place.masked(data.decode("utf-8"))
    return f"{len(data)} bytes" if path.suffix in (".pdf", ".npz") else _digest(data)


def _tensors(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    for key, entry in header.items():
        first, last = (8 + length + end for end in entry["data_offsets"])
        yield f"{key} {entry['dtype']} {entry['shape']} {_digest(data[first:last])}"
    for key, text in sorted(metadata.items()):
        value = json.loads(text) if text[:1] in "{[" else text
        yield f"{key}: {json.dumps(value, indent=1, sort_keys=True)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _without_times(words: Sequence[str], said: str) -> str:
    """The output without the two columns of times in the table of ``trace``."""
    return re.sub(r" +[\d,]*\.\d+", " TIME", said) if words[:1] == ["trace"] else said


def _last_lines(said: str) -> str:
    """The lines as they stand at the end, without what a carriage return replaces, such as bars."""
    lines = said.replace("\r\n", "\n").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2] for line in lines]
    return "\n".join(line.rstrip() for line in plain if line.strip() and "\u2501" not in line)


def _public() -> Iterator[tuple[str, Any]]:
    """The public names of hookscope and those of its classes, with their values."""
    import hookscope

    for name in sorted(hookscope.__all__):
        value = getattr(hookscope, name)
        yield name, value
        if inspect.isclass(value):
            for member in sorted(vars(value)):
                if not member.startswith("_"):
                    yield f"{name}.{member}", inspect.getattr_static(value, member)


def _signatures() -> Iterator[str]:
    for name, value in _public():
        target = getattr(value, "fget", None) or getattr(value, "__func__", value)
        try:
            yield f"{name}{inspect.signature(target)}"
        except (TypeError, ValueError):
            yield f"{name}: {type(value).__name__}"


def _docstring_runs() -> Iterator[str]:
    """What the examples of public docstrings print."""
    import hookscope

    finder = doctest.DocTestFinder(recurse=False)
    folder = os.getcwd()
    for name, value in _public():
        if not (callable(value) or isinstance(value, property | classmethod | staticmethod)):
            continue  # the value of an attribute, whose docstring is that of its type
        text = inspect.getdoc(getattr(value, "fget", None) or value) or ""
        if ">>>" not in text or type(value).__module__ == "typing":
            continue
        module = sys.modules.get(getattr(value, "__module__", ""), hookscope)
        for test in finder.find(_Documented(text), name, module=False, globs={**vars(module)}):
            heard: list[str] = []
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            with tempfile.TemporaryDirectory() as place:
                shutil.copytree(REPO / "sample_models", f"{place}/sample_models")
                os.chdir(place)
                runner = doctest.DocTestRunner(verbose=True, optionflags=options)
                runner.run(test, out=heard.append)
                os.chdir(folder)
            yield f"=== {name}\n" + _masked("".join(heard), Path(place))


class _Documented:
    """An object whose docstring is a text."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Record or compare; return the exit status."""
    match arguments:
        case ["record", folder]:
            record(Path(folder).resolve())
            return 0
        case ["compare", before, after]:
            return int(compare(Path(before), Path(after)))
    print("usage: python -m tools.behavior record FOLDER | compare BEFORE AFTER", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
