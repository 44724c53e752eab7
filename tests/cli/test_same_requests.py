"""Each command and its function, asked for the same thing thirty times.

A request is a command line. The keywords that it stands for are read from it here by the types of
the keywords alone, without the readers of the command line. Both run in this process, and what they
return or raise, and the files that they write, are compared.
"""

from __future__ import annotations

import inspect
import itertools
import json
import random
import re
import shlex
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hookscope
from hookscope.cli import error_report, run_context
from hookscope.cli.main import cli, main
from hookscope.errors import TROUBLE, RequestError
from hookscope.files import strict_json
from hookscope.model_analysis.cams.overlay import save_overlay
from hookscope.results.result import Result
from hookscope.specs import public
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.public import Checked, in_keywords
from hookscope.specs.settings import Setting
from hookscope.specs.value_readers import CommandLineText
from hookscope.views import display
from hookscope.views.display import make_document
from hookscope.views.models import models_document

NUMBER = 30
FUNCTIONS = [
    name
    for name in hookscope.__all__
    if name in cli.commands and callable(getattr(hookscope, name))
]
FILE = Path(__file__).with_name("same_requests.txt")
# These are chosen by hand: what is run, and what would take long or need another machine.
NOT_DRAWN = {"model", "input", "shape", "workers", "device_map", "memory", "generate"}
PARSED = {
    "shape": (["1x1x8x8"], ["x", "3x", "0"]),
    "bytes": (["100000000"], ["many"]),
    "size": (["8", "8x6"], ["0", "1x2x3"]),
    "numbers": (["0.5"], ["red"]),
}


class Answer(NamedTuple):
    """What one side says: the exit status, the document or the message, and the files."""

    status: int
    said: Any
    files: dict[str, bytes]


def written_by_hand() -> dict[str, list[str]]:
    """The command lines of the file, by command; ``<a|b>`` in a line makes it two."""
    lines: dict[str, list[str]] = {name: [] for name in FUNCTIONS}
    for line in FILE.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            command, _, rest = line.partition(" ")
            parts = [part.split("|") for part in re.split(r"[<>]", rest)]
            lines[command] += ["".join(chosen).strip() for chosen in itertools.product(*parts)]
    return lines


def requests_of(name: str) -> list[str]:
    """Thirty command lines: those written by hand, and others made of the declarations."""
    lines = written_by_hand()[name]
    chance = random.Random(name)
    right, wrong = ({k: v for k, v in each.items() if v} for each in values_of(name))
    while len(lines) < NUMBER:
        chosen = chance.sample(sorted(right), min(len(right), chance.choice((1, 1, 2, 3))))
        words = [chance.choice(right[key]) for key in chosen]
        if wrong and chance.random() < 0.4:
            key = chance.choice(sorted(wrong))
            words = [*words[1:], chance.choice(wrong[key])]
        line = " ".join([lines[0], *(word for word in words if word.split()[0] not in lines[0])])
        if line not in lines:
            lines.append(line)
    return lines


def values_of(name: str, every: bool = False) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For each declared option the ways to type it rightly, and wrongly."""
    settings = getattr(getattr(hookscope, name), "settings", {})
    right, wrong = {}, {}
    for option in cli.commands[name].options():
        about = settings.get(option.name)
        if about is not None and (
            option.name not in NOT_DRAWN or (every and option.name not in ("model", "input"))
        ):
            good, bad = texts_of(about, type_of(name, option.name))
            for ways, texts in ((right, good), (wrong, bad)):
                ways[option.name] = [shlex.join([f"--{option.key}", *text]) for text in texts]
    return right, wrong


def texts_of(about: Setting, kind: str) -> tuple[list[list[str]], list[list[str]]]:
    """Texts for an option that its declaration allows, at its bounds too, and others."""
    good: list[Any] = []
    bad: list[Any] = []
    if kind.startswith("bool"):
        return [[]], []
    if about.choices:
        first, *others = about.choices
        good, bad = [first, *others], ["nosuch", first[:-1], first.upper()]
        if about.commas:
            good, bad = [*good, ",".join([first, *others[:1]])], [*bad, f"{first},nosuch", ""]
    elif about.parse is not None:
        good, bad = PARSED.get(about.kind, (["0", "0,1", "0-2"], ["x", "0,x"]))
    elif kind.startswith("int") and "str" not in kind:
        least, most = about.minimum, about.maximum
        good, bad = ["1", "2", "5"], ["x", "1.5"]
        if least is not None:
            good, bad = [str(least), str(least + 1)], [*bad, str(least - 1)]
        if most is not None:
            good, bad = [*good, str(most)], [*bad, str(most + 1)]
    elif kind.startswith("float"):
        good, bad = ["0.5", "1", "0.001", "0"], ["x", "1,5", "nan", "-1", "inf"]
    elif about.file or not about.collect:
        bad = ["nosuch"]
    return [[text] for text in good], [[text] for text in bad]


def type_of(name: str, key: str) -> str:
    return str(inspect.signature(getattr(hookscope, name)).parameters[key].annotation)


def call_of(name: str, line: str, texts: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """The positional and other arguments of the function that a command line stands for.

    With ``texts``, what the command line parses is left as it is typed.
    """
    command, function = cli.commands[name], getattr(hookscope, name)
    settings = getattr(function, "settings", {})
    flags = {
        flag: param for param in command.options() for flag in (*param.opts, *param.secondary_opts)
    }
    places, given = [], {}
    words = iter(shlex.split(line))
    for word in words:
        if word not in flags:
            places.append(word)
            continue
        param = flags[word]
        if param.is_flag:
            given[param.name] = True
        else:
            given.setdefault(param.name, []).append(next(words))
    return places, {
        key: value
        if isinstance(value, bool)
        else python_value(settings.get(key), type_of(name, key), value, texts)
        if key in inspect.signature(function).parameters
        else value[-1]
        for key, value in given.items()
    }


def python_value(about: Setting | None, kind: str, texts: list[str], typed: bool) -> Any:
    """What a Python programmer writes for these texts; a text that does not fit stays one."""
    if typed and about is not None and (about.collect or about.parse or about.commas):
        return texts if about.collect or about.many else texts[-1]
    if about is not None and about.collect is not None:
        if "Mapping" in kind:
            pairs = (text.split("=", 1) for text in texts)
            return {key: int(value) if value.isdecimal() else value for key, value in pairs}
        return texts
    if about is not None and about.commas:
        return [word for text in texts for word in text.split(",")]
    values = [_plain_value(kind, text) for text in texts]
    many = about is not None and about.many and about.callback != "one_layer"
    return values if many else values[-1]


def _plain_value(kind: str, text: str) -> Any:
    numbers = {"int": int, "float": float}
    if found := re.fullmatch(r"(\d)-(\d)", text):
        return tuple(range(int(found[1]), int(found[2]) + 1))
    parts = text.split("x") if "x" in text and text != "x" else text.split(",")
    for name, read in numbers.items():
        try:
            if re.match(rf"{name}\b", kind) and "str" not in kind and len(parts) == 1:
                return read(text)
            if f"Sequence[{name}]" in kind or f"tuple[{name}" in kind:
                return tuple(map(read, parts))
        except ValueError:
            return text
    return text


class Sides:
    """Runs a request on both sides in one folder, which is as before after each."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._kept = self._files()

    def shell(self, name: str, line: str) -> Answer:
        """Run the command with ``--json``; none of its errors is spelled for Python."""
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(public, "in_keywords", lambda text, function: f"In Python: {text}")
            main([name, *shlex.split(line), "--json", "--quiet"])
        status = int(ended.value.code or 0)
        out, err = self._capsys.readouterr()
        said = json.loads(out) if out else None
        if said is None or isinstance(said.get("failed"), str):
            said = error_in(err)
        return Answer(status, said, self._new_files())

    def python(self, name: str, line: str, written: str | None, texts: bool = False) -> Answer:
        """Call the function, and save its result where the command did."""
        try:
            result, file = called(name, line, written, texts)
            said = json.loads(strict_json.dumps(document_of(name, result, file)))
            status = int(not getattr(result, "ok", getattr(result, "same", True)))
        except Exception as error:
            fault = error_report.explain_error(error)
            said = f"{fault.message}\n{fault.hint}".strip()
            status = TROUBLE if name == "diff" else fault.status
        self._capsys.readouterr()
        return Answer(status, said, self._new_files())

    def _files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    def _new_files(self) -> dict[str, bytes]:
        new = {
            name: data
            for name, data in self._files().items()
            if name not in self._kept and "__pycache__" not in name
        }
        for name in new:
            Path(name).unlink()
        return new


def called(
    name: str, line: str, written: str | None, texts: bool = False
) -> tuple[Any, str | None]:
    """Call a function; return its result, and the file of it."""
    places, given = call_of(name, line, texts)
    parameters = inspect.signature(getattr(hookscope, name)).parameters
    for key in set(given) - set(parameters):
        del given[key]  # says what the terminal shows, or where the result is written
    if name == "capture":
        given.setdefault("stop", None)  # the only default that differs
    if "output" in parameters:
        given["output"] = written
    elif "file" in parameters and name not in ("plot", "report"):
        given["file"] = written
    result = getattr(hookscope, name)(*places, **given)
    if written is not None and not Path(written).exists():
        result.save(written)
    if name == "cam" and (picture := written_in(line)):
        save_overlay(result, picture)
    return result, written


def document_of(name: str, result: Any, file: Any) -> Any:
    """What ``--json`` says of a result of Python."""
    if name == "models":
        return models_document(result)
    if name == "extract":
        folder = file if file is not None else str(result.location)
        return make_document(name, {**result.manifest, **result.summary(), "folder": folder})
    if name == "export":
        return make_document(name, result.to_json())
    if name == "filters" or (name == "plot" and not isinstance(result, Result)):
        return make_document(name, {"file": file, "kind": result.kind, "shows": result.shows})
    if name == "report":
        about = {key: value for key, value in vars(result).items() if key != "html"}
        return make_document(name, {"file": file, "bytes": Path(file).stat().st_size, **about})
    document = display.document(result, file)
    return document if name != "cam" else {**document, "picture": file and f"{file[:-12]}.png"}


def error_in(err: str) -> str:
    """The error in what a command prints, without notes and without the name of its help."""
    message = err.partition("Error: ")[2] or err
    return re.sub(r"\nSee: hookscope \w+ --help$", "", message.strip())


def masked(name: str, answer: Answer) -> Answer:
    """An answer without times, and a message as Python spells it."""
    function = getattr(hookscope, name)
    if isinstance(answer.said, str):
        spelled = hasattr(function, "options")
        return answer._replace(said=in_keywords(answer.said, function) if spelled else answer.said)
    return answer._replace(said=without_times(answer.said))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {k: without_times(v) for k, v in value.items() if k not in TIMES}
        for key in ("model_args", "opt_args"):  # texts on the command line
            if plain.get(key):
                plain[key] = {name: str(one) for name, one in plain[key].items()}
        return plain
    return [without_times(one) for one in value] if isinstance(value, list) else value


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of a document by their paths."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, one in pairs for k, v in leaves(one, f"{path}.{key}").items()}
    return {path: value}


def difference(a: Answer, b: Answer) -> str:
    """What two answers differ in; empty if nothing."""
    if a == b:
        return ""
    if isinstance(a.said, str) or isinstance(b.said, str):
        return "".join(
            f"\n    {side}: {x.status} {x.said!s:.3000}" for side, x in (("py", a), ("sh", b))
        )
    x, y = leaves(a._replace(files={})._asdict()), leaves(b._replace(files={})._asdict())
    wrong = {k: (x.get(k), y.get(k)) for k in x | y if x.get(k) != y.get(k)}
    wrong |= {
        f"file {n}": (len(a.files.get(n, b"")), len(b.files.get(n, b"")))
        for n in a.files | b.files
        if a.files.get(n) != b.files.get(n)
    }
    return "".join(f"\n    {key}: {value!s:.200}" for key, value in list(wrong.items())[:6])


TIMES = {"milliseconds", "start", "time", "own", "share", "own_share", "hooks"}
TIMES |= {"waited_for_read", "waited_for_forward", "waited_for_write"}


@pytest.fixture
def sides(tmp_path, clean_environment, monkeypatch, capsys, samples_folder) -> Sides:
    monkeypatch.chdir(samples_folder)
    for key in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(key, clean_environment[key])
    monkeypatch.setattr(run_context, "_import_torch", lambda: None)  # it freezes what is collected
    (samples_folder / "net.py").write_text(MODELS)
    make_damaged(samples_folder)
    return Sides(capsys)


def make_damaged(folder: Path) -> None:
    """Copies of the features, each with one file that is cut, gone or has another byte."""
    whole = folder / "sample_models" / "features"
    for file in whole.iterdir():
        for damage in ("cut", "gone", "byte"):
            copy = folder / "damaged" / f"{file.name}-{damage}"
            shutil.copytree(whole, copy)
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            (copy / file.name).unlink()
            if damage != "gone":
                (copy / file.name).write_bytes(data if damage == "byte" else data[:-9])


MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.conv = nn.Conv2d(1, int(width), 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(int(width) * 36, 3)

    def forward(self, x):
        return self.fc(self.relu(self.conv(x)).flatten(1))

    def halves(self, x):
        return self.forward(x) / 2

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.inner(x)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids))))

class Small(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

def hook(module, input, output):
    return output * 2
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_declared_option_is_read_alike(sides: Sides, monkeypatch, name: str) -> None:
    """Each value, right and wrong, in a call that ends before it runs: what is asked, or the error.

    Python gives a value of its own, and then the text.
    """

    asked: list[Any] = []

    def end(job: Checked, **more: Any) -> None:
        groups = {name: part for name, part in job.values.items() if is_dataclass(part)}
        asked.append({name: plain(part) for name, part in groups.items()})
        raise RequestError("The options are read.")

    def read(answer: Answer) -> Answer:
        return answer._replace(said=asked.pop()) if asked else masked(name, answer)

    monkeypatch.setattr(Checked, "__call__", end)
    monkeypatch.setattr(sides, "_files", dict)
    first = written_by_hand()[name][0]
    right, wrong = values_of(name, every=True)
    ways = [(way, True) for key in wrong for way in wrong[key]]
    ways += [(way, texts) for key in right for way in right[key] for texts in (False, True)]
    differences = []
    for way, texts in ways:
        line = f"{first} {way}"
        by_shell = read(sides.shell(name, line))
        by_python = read(sides.python(name, line, written_in(line), texts))
        if wrong_side := difference(by_python, by_shell):
            differences.append(f"hookscope {name} {line}{wrong_side}")
    assert not differences, "\n".join([f"{len(differences)} of {len(ways)}", *differences])


def plain(value: Any) -> Any:
    """A value of a group as data, with the texts of parsed inputs."""
    if isinstance(value, InputSpec | CommandLineText):
        return str(getattr(value, "text", value))
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_none_of_thirty_requests_differs(sides: Sides, name: str) -> None:
    lines = requests_of(name)
    differences, ran = [], 0
    for line in lines:
        by_shell = sides.shell(name, line)
        document = by_shell.said if isinstance(by_shell.said, dict) else {}
        written = document.get("file") or written_in(line)
        by_python = sides.python(name, line, written)
        ran += bool(document)
        if wrong := difference(masked(name, by_python), masked(name, by_shell)):
            differences.append(f"hookscope {name} {line}{wrong}")
    assert not differences, "\n".join([f"{len(differences)} of {len(lines)}", *differences])
    assert len(lines) >= NUMBER and ran >= 8  # did not only fail in the same way


def written_in(line: str) -> str | None:
    words = shlex.split(line)
    return words[words.index("-o") + 1] if "-o" in words else None
