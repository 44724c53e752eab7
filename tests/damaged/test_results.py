"""Damaged files of results: every command that reads them ends with a message and exit status 2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import ResultsFileError, StoreError
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.files.safetensors_header import header_of
from hookscope.stores.capture_file import open_capture
from hookscope.views import display
from hookscope.views.images.feature_maps import read_feature_maps
from hookscope.views.images.tensor_view import read_tensor_view
from hookscope.views.stored_tensors import provenance_lines, show_document
from hookscope.views.text.terminal_maps import map_lines
from hookscope.views.text.text_table import PIPE, TextOptions
from tests.conftest import REPO
from tests.damage import altered, damaged, endure, few_or_many

DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = REPO / "sample_models" / "five.png"
X = torch.linspace(-1, 1, 4 * 8).reshape(1, 4, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x)[0]  # type: ignore[no-any-return]


def _complex() -> hookscope.Capture:
    return hookscope.capture(nn.Identity(), input=torch.ones(3, 2, dtype=torch.complex128) * 1j)


MAKE: dict[str, Callable[[], hookscope.Capture]] = {
    "edited": lambda: hookscope.capture(
        DIGITS, input=FIVE, what=["input", "output"], edits="conv1=scale:0.5", compare=True
    ),
    "attention": lambda: hookscope.capture(Attention().eval(), input=X, attention=True),
    "grads": lambda: hookscope.grads(
        DIGITS, input=FIVE, grad_edits="conv1=scale:0.5", compare=True
    ),
    "penalty": lambda: hookscope.grads(DIGITS, input=FIVE, penalty="gp"),
    "step": lambda: hookscope.step(DIGITS, input=FIVE),
    "cam": lambda: hookscope.cam(DIGITS, input=FIVE),
    "complex": _complex,
}


def show(path: Path) -> None:
    capture = open_capture(path)
    display.text(capture, TextOptions(80))
    display.text(capture, PIPE)
    provenance_lines(capture, TextOptions(80))
    strict_json.dumps(show_document(capture, str(path)))
    for record in capture.records[:3]:
        display.text(read_tensor_view(capture, record.key), TextOptions(80))


def maps(path: Path) -> None:
    capture = open_capture(path)
    for record in capture.records[:2]:
        map_lines(read_feature_maps(capture, record.key), (80, 24), False, False, False)


def report(path: Path) -> None:
    for others in ((), (path.with_name("whole"),)):
        hookscope.report(path, *others).save(path.with_suffix(".html"))


def patch(path: Path) -> None:
    net = nn.Sequential(nn.Identity())
    hookscope.capture(net, input=torch.ones(2, 2), edits=f"0=patch:{path}")


READ: dict[str, Callable[[Path], object]] = {
    "load": hookscope.load,
    "show": show,
    "maps": maps,
    "report": report,
    "diff": lambda path: hookscope.diff(path.with_name("whole"), path),
    "patch": patch,
}


def contents(whole: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """Files of results with changed bytes, and intact files with changed metadata."""
    yield from damaged(whole, rounds, seed)
    length = int.from_bytes(whole[:8], "little")
    table, rest = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    info = json.loads(table["__metadata__"][MARK])
    for other in altered(info, rounds * 2, seed):
        yield packed({**table, "__metadata__": {MARK: json.dumps(other)}}, rest)
    yield from (packed(other, rest) for other in altered(table, rounds // 2, seed))


def packed(table: object, rest: bytes) -> bytes:
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + rest


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rounds", "seed"), few_or_many(12, 50))
@pytest.mark.parametrize("made", MAKE)
def test_a_damaged_file_of_results_is_refused_in_a_sentence(
    tmp_path: Path, made: str, rounds: int, seed: int
) -> None:
    MAKE[made]().save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "a.safetensors"
    for name, read in READ.items():
        if name not in ("maps", "patch"):  # not every tensor has maps, or a layer
            assert endure(path, [whole], lambda read=read: read(path)) == 0
        refused = endure(path, contents(whole, rounds, seed), lambda read=read: read(path))
        assert refused > rounds


@pytest.mark.exhaustive
def test_a_picture_of_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    MAKE["edited"]().save(tmp_path / "whole")
    path = tmp_path / "a.safetensors"
    broken = contents((tmp_path / "whole").read_bytes(), 20, 0)
    assert endure(path, broken, lambda: hookscope.plot(path).save(tmp_path / "a.png")) > 20


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("records", 0, "shape"), [2, 3], "another shape"),
        (("records", 0, "call"), "1", "call is '1'"),
        (("records", 0, "stats", "max"), 1e308 * 10, "statistics"),
        (("inputs", 0), {"spec": 5}, "metadata.inputs.0.spec is 5"),
        (("top",), [[{"index": None}]], "metadata.top.0.0 has no label"),
    ],
)
def test_damaged_metadata_are_named(tmp_path: Path, place, value, message: str) -> None:
    path = tmp_path / "a"
    hookscope.capture(DIGITS, input=FIVE).save(path)
    table, start = header_of(path)
    info = json.loads(table["__metadata__"][MARK])
    holder = info
    for part in place[:-1]:
        holder = holder[part]
    holder[place[-1]] = value
    table["__metadata__"][MARK] = json.dumps(info)
    path.write_bytes(packed(table, path.read_bytes()[start:]))
    for read in (hookscope.load, open_capture):
        with pytest.raises(ResultsFileError, match=message):
            read(path)


def test_what_cannot_be_read_is_a_wrong_request_and_what_cannot_be_written_a_failure(
    tmp_path: Path,
) -> None:
    with pytest.raises(ResultsFileError) as read:
        hookscope.load(tmp_path / "none")
    with pytest.raises(StoreError) as written:
        _complex().save(tmp_path / "none" / "a")
    assert (read.value.exit_code, written.value.exit_code) == (2, 1)


@pytest.mark.exhaustive
def test_a_damaged_file_of_an_ablation_is_not_gone_on_from(tmp_path: Path) -> None:
    path, net = tmp_path / "a.json", nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def ablate() -> hookscope.Ablation:
        return hookscope.ablate(
            net, input=torch.ones(1, 8), channels=True, rank="output", file=path
        )

    expected = ablate()
    unfinished = json.loads(path.read_bytes())
    unfinished["ablations"] = unfinished["ablations"][:9]
    unfinished["finished"] = False
    whole = strict_json.dumps(unfinished).encode()
    path.write_bytes(whole)
    assert ablate().resumed == 9

    def read() -> None:
        assert len(ablate().ablations) == expected.total

    broken = [json.dumps(other).encode() for other in altered(unfinished, 40, 0)]
    assert endure(path, [*broken, *damaged(whole, 20, 0)], read) == 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["show"], ["report"], ["diff", "whole"]])
def test_the_command_refuses_a_damaged_file_in_a_sentence(run, tmp_path: Path, arguments) -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    whole = (REPO / "sample_models" / "five.safetensors").read_bytes()
    (work / "whole").write_bytes(whole)
    (work / "cut").write_bytes(whole[:-100])
    table, start = header_of(work / "whole")
    info = json.loads(table["__metadata__"][MARK])
    table["__metadata__"][MARK] = json.dumps({**info, "versions": {"\x1b[31m": 5}})
    (work / "sly").write_bytes(packed(table, whole[start:]))
    # diff reports that a truncated file is not a capture
    for name in ("sly",) if arguments[0] == "diff" else ("cut", "sly"):
        done = run(*arguments, name)
        assert done.rc == 2
        assert done.stderr.startswith(f"Error: Cannot read {name}: ")
        assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 2
