"""Large captures go to their file while the model runs: the same bits, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError
from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink
from hookscope.tensors import recording_file
from hookscope.tensors.nested import bits_of
from hookscope.tensors.recording_file import RecordingFile
from tests.processes import COMMAND, end_by_signal, run_python, start_python
from tests.zoo import Module

pytestmark = pytest.mark.skipif(
    not RecordingFile.is_supported(), reason="needs posix_fallocate and madvise"
)

MODEL = """
import time
from pathlib import Path
import torch
from torch import nn

class Add(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        if self.n == 20 and not x.is_meta and Path("wait").exists():
            Path("waiting").touch()
            time.sleep(600)  # until Ctrl-C
        return x + self.n

def net():
    return nn.Sequential(*map(Add, range(24)))
"""


class Mixed(nn.Module):
    """Outputs of many dtypes and layouts, of a size that is a multiple of 8 or not."""

    def forward(self, x: Tensor) -> Any:
        wide = x.double() / 3
        return {
            "float64": wide,
            "channels_last": x.to(memory_format=torch.channels_last),
            "view": x.transpose(0, 3),
            "conj": torch.complex(x, x).conj(),
            "complex128": torch.complex(wide, -wide),
            "bfloat16": x.bfloat16(),
            "bool": x > 0,
            "odd": (x > 0).reshape(-1)[:-3],
            "sparse": x.relu().to_sparse(),
            "int32": (9 * x).int(),
            "scalar": x.sum(),
            "empty": x[:0],
            "infinite": torch.where(x > 1, torch.inf, x).masked_fill(x < -2, torch.nan),
        }


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 6, 50, 40, generator=torch.Generator().manual_seed(0))


def recorded(path: Path, x: Tensor, held: int) -> hookscope.Capture:
    """Two calls of a module of many outputs, of which ``held`` bytes are kept in memory."""
    model = nn.Sequential(Mixed())
    sink = CaptureSink(file=RecordingFile(path, held))
    with Recorder(model, layers_of(model)[1:], {"output"}, sink=sink) as capture:
        model(x)
        model(2 * x)
    return capture


@pytest.mark.parametrize("held", [0, 100_000, 500_000])
def test_the_file_has_the_bits_and_the_statistics_of_a_capture_in_memory(
    tmp_path: Path, image: Tensor, held: int, monkeypatch
) -> None:
    monkeypatch.setattr(recording_file, "_MAPPED", 300_000)  # several maps
    plain, ours = tmp_path / "plain.safetensors", tmp_path / "ours.safetensors"
    recorded(tmp_path / "unused", image, 1 << 40).save(plain)
    capture = recorded(ours, image, held)
    assert not ours.exists()
    capture.save(ours)

    assert ours.stat().st_size > plain.stat().st_size  # it has room for a header
    with safe_open(plain, "pt") as a, safe_open(ours, "pt") as b:
        assert a.metadata() == b.metadata() and set(a.keys()) == set(b.keys())
        for key in a.keys():  # noqa: SIM118
            first, second = a.get_tensor(key), b.get_tensor(key)
            assert first.dtype == second.dtype
            assert torch.equal(bits_of(first), bits_of(second))
    again = hookscope.load(ours)
    assert list(again) == list(capture)
    assert sorted(os.listdir(tmp_path)) == ["ours.safetensors", "plain.safetensors"]


def test_tensors_of_a_saved_capture_are_not_those_of_the_file(
    tmp_path: Path, image: Tensor
) -> None:
    path = tmp_path / "a.safetensors"
    capture = recorded(path, image, 0)
    capture.save(path)
    before = path.read_bytes()
    for tensor in capture.values():
        if tensor.is_floating_point() and not tensor.is_sparse:
            tensor.add_(1)
    assert path.read_bytes() == before
    assert torch.equal(capture["0/output.float64"], image.double() / 3 + 1)


def test_a_header_without_room_and_another_path_are_written_as_usual(
    tmp_path: Path, image: Tensor, monkeypatch
) -> None:
    capture = recorded(tmp_path / "a.safetensors", image, 0)
    capture.save(tmp_path / "b.safetensors")
    monkeypatch.setattr(recording_file, "ROOM", 4096)
    capture = recorded(tmp_path / "a.safetensors", image, 0)
    capture.save(tmp_path / "a.safetensors")
    a, b = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "ab")
    assert a == b
    del capture
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "b.safetensors"]


def test_tensors_of_a_rare_dtype_are_written_as_usual(tmp_path: Path, image: Tensor) -> None:
    path = tmp_path / "a.safetensors"
    model = nn.Sequential(
        Module(lambda self, x: (x + 1, x.to(torch.float8_e4m3fn), (x > 0).to(torch.uint16)))
    )
    sink = CaptureSink(file=RecordingFile(path, 0))
    with Recorder(model, layers_of(model)[1:], {"output"}, sink=sink) as capture:
        model(image)
    capture.save(path)
    stored = hookscope.load(path)
    assert torch.equal(stored["0/output.0"], image + 1)
    assert torch.equal(bits_of(stored["0/output.1"]), bits_of(image.to(torch.float8_e4m3fn)))
    assert torch.equal(stored["0/output.2"], (image > 0).to(torch.uint16))


def test_a_capture_that_is_not_saved_leaves_nothing(tmp_path: Path, image: Tensor) -> None:
    capture = recorded(tmp_path / "a.safetensors", image, 0)
    assert len(os.listdir(tmp_path)) == 1  # the unfinished file, in a folder of its own
    del capture
    assert os.listdir(tmp_path) == []


def test_a_model_that_fails_leaves_no_file(tmp_path: Path, image: Tensor, monkeypatch) -> None:
    monkeypatch.setattr(RecordingFile.__init__, "__defaults__", (0,))

    def forward(self: Module, x: Tensor) -> Any:
        self.mixed(x)
        raise ValueError(f"with {len(os.listdir(tmp_path))} file")

    model = Module(forward, mixed=Mixed())
    with pytest.raises(ForwardError, match="with 1 file") as error:
        hookscope.capture(model, input=image, file=tmp_path / "a.safetensors")
    assert error.traceback  # it refers to the recording
    assert os.listdir(tmp_path) == []


def test_what_was_recorded_before_an_error_can_be_saved(tmp_path: Path, image: Tensor) -> None:
    plain, ours = tmp_path / "plain.safetensors", tmp_path / "ours.safetensors"
    recorded(tmp_path / "unused", image, 1 << 40).save(plain)
    capture = recorded(ours, image, 0)
    pages: Any = capture._file
    with pytest.raises(ValueError, match="later"), pages:
        raise ValueError("later")
    assert os.listdir(tmp_path) == [plain.name]
    capture.save(ours)
    assert ours.read_bytes() == plain.read_bytes()


def test_the_file_argument_writes_the_capture(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(RecordingFile.__init__, "__defaults__", (1000,))
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(8, 64)
    path = tmp_path / "a.safetensors"
    capture = hookscope.capture(model, input=x, file=path)
    assert torch.equal(capture["1/output"], model(x))
    assert torch.equal(hookscope.load(path)["1/output"], model(x))


def command(folder: Path, *words: str) -> list[str]:
    (folder / "big.py").write_text(MODEL)
    size = ("--shape", "1x4x1024x2048")
    return ["capture", "big.py:net", *size, "-o", "big.safetensors", *words]


PEAK = """
import re, runpy, sys
from pathlib import Path
sys.argv = sys.argv[1:]
try:
    runpy.run_module("hookscope", run_name="__main__")
finally:
    status = Path("/proc/self/status").read_text()
    Path("peak").write_text(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_the_recording(tmp_path: Path, clean_environment) -> None:
    (tmp_path / "peak.py").write_text(PEAK)
    peaks = []
    for layers in ("1?", "*"):  # 14 and 24 layers of 34 MB
        words = command(tmp_path, "--layer", layers, "--force", "--json")
        run_python("peak.py", "hookscope", *words, cwd=tmp_path, env=clean_environment, status=0)
        peaks.append(int((tmp_path / "peak").read_text()) / 1000)
    assert (tmp_path / "big.safetensors").stat().st_size > 800_000_000
    assert peaks[1] < peaks[0] + 100  # MB; ten more layers have 340


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ctrl_c_leaves_no_file(tmp_path: Path, clean_environment) -> None:
    (tmp_path / "wait").touch()
    words, waiting = (*COMMAND, *command(tmp_path)), tmp_path / "waiting"
    process = start_python(*words, cwd=tmp_path, env=clean_environment, until=waiting.exists)
    assert list(tmp_path.glob(".big.safetensors*.part"))
    done = end_by_signal(process)
    assert done.rc == 130
    assert "nothing was written" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*big.safetensors*"))
    assert not list(tmp_path.glob(".big*"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_file_that_may_not_grow_is_a_sentence(tmp_path: Path, clean_environment) -> None:
    resource = pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, *COMMAND, *command(tmp_path, "--json")],
        cwd=tmp_path,
        env={**clean_environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, -1)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot write" in done.stderr and "Nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob(".big*"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_writes_what_python_records(tmp_path: Path, clean_environment) -> None:
    words = (*COMMAND, *command(tmp_path, "--layer", "1?", "--json"))
    done = run_python(*words, cwd=tmp_path, env=clean_environment, status=0)
    names = [record["key"] for record in json.loads(done.stdout)["records"]]
    stored = hookscope.load(tmp_path / "big.safetensors")
    plain = hookscope.capture(f"{tmp_path}/big.py:net", layers="1?", shape=(1, 4, 1024, 2048))
    assert list(stored) == names == list(plain)
    assert all(torch.equal(stored[key], plain[key]) for key in plain)
    assert [r.stats for r in stored.records] == [r.stats for r in plain.records]
