"""The weights of a model of transformers stay in their files: they take no memory of the process.

Pages that are mapped from a file are in the cache of the operating system, which drops them when
memory is short. What counts is the peak of anonymous memory, which cannot be dropped.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sources.sparse_llama import write_llama

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="anonymous memory is read from /proc"
)
MB = 10**6


def peak_anonymous(environment: dict[str, str], folder: Path, *options: str) -> int:
    """Capture a layer of the model in ``folder``; return the largest anonymous memory in bytes."""
    command = [sys.executable, "-m", "hookscope", "capture", f"hf:{folder}", "--no-output"]
    command += ["--layer", "model.layers.1.mlp", "--input", f"input_ids={folder}/tokens.npy"]
    peak = 0
    with subprocess.Popen(
        [*command, *options],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(0.01)
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read().decode()
    return peak


def _anonymous(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    lines = (line.split() for line in status.splitlines() if line.startswith("RssAnon"))
    return next((int(words[1]) * 1024 for words in lines), 0)  # none in a process that has ended


def test_a_capture_does_not_copy_the_weights(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    small = write_llama(tmp_path / "small", width=512, inner=512, layers=2)
    large = write_llama(tmp_path / "large", width=1024, inner=8192, layers=7)
    assert large - small > 400 * MB
    few, many = (peak_anonymous(clean_environment, tmp_path / name) for name in ("small", "large"))
    assert many - few < 100 * MB


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["--verify"], ["--generate", "2"]])
def test_a_model_of_4_gb_is_captured_in_less_than_2_gb(
    tmp_path: Path, clean_environment: dict[str, str], options: list[str]
) -> None:
    folder = tmp_path / "model"
    assert write_llama(folder, width=2048, inner=16384, layers=20, files=4) > 4000 * MB
    assert peak_anonymous(clean_environment, folder, *options) < 2000 * MB


def test_a_model_split_over_memory_and_disk_is_never_in_memory_as_a_whole(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    small = write_llama(tmp_path / "small", width=512, inner=512, layers=2)
    large = write_llama(tmp_path / "large", width=1024, inner=8192, layers=7)
    assert large - small > 400 * MB
    split = ["--device-map", "auto", "--max-memory", "cpu=250MB"]
    few, many = (
        peak_anonymous(clean_environment, tmp_path / name, *split) for name in ("small", "large")
    )
    assert many - few < 150 * MB
