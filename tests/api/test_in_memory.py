"""``plot`` and ``report`` of a capture in memory are those of its file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import RequestError
from hookscope.stores.capture_file import open_capture

DIGITS = f"{Path(__file__).resolve().parents[2]}/sample_models/digits.py:trained"


@pytest.fixture(scope="module")
def shot() -> hookscope.Capture:
    return hookscope.capture(DIGITS, layers=["conv*", "fc"], what=["input", "output"])


@pytest.fixture(scope="module")
def file(shot: hookscope.Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "shot.safetensors"
    shot.save(path)
    return path


def test_both_readers_give_the_same_arrays(shot: hookscope.Capture, file: Path) -> None:
    memory, stored = shot.reader(), open_capture(file)
    assert memory.records == stored.records and memory.coverage == stored.coverage
    for key in shot:
        for index in ((...,), (0, slice(0, 3)), (-1,)):
            assert np.array_equal(memory.tensor(key, index), stored.tensor(key, index))
            assert memory.shape(key, index) == stored.shape(key, index)
        assert memory.dtype(key) == stored.dtype(key)
        pieces = zip(memory.blocks(key), stored.blocks(key), strict=True)
        assert all(np.array_equal(a, b) for a, b in pieces)


def test_a_gpu_dtype_is_read_by_its_values() -> None:
    capture = hookscope.Capture()
    value = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    capture.put(value, module="a", type="X", call=1, what="output", kind="output")
    assert capture.reader().tensor("a/output").tolist() == [[1.5, -2.0]]


def test_the_page_differs_in_the_name_and_the_size_of_the_file_alone(
    shot: hookscope.Capture, file: Path
) -> None:
    memory, stored = hookscope.report(shot), hookscope.report(file)
    assert (memory.tensors, memory.layers) == (stored.tensors, stored.layers)
    assert "the capture" in memory.html and str(file) not in memory.html
    a, b = (re.findall(r"<svg.*?</svg>", page.html, re.DOTALL) for page in (memory, stored))
    assert a == b and len(a) > 4
    assert hookscope.report(shot, file).tensors == stored.tensors


@pytest.mark.parametrize("function", [hookscope.plot, hookscope.report])
def test_anything_else_is_refused(function) -> None:
    with pytest.raises(RequestError, match="dict"):
        function({"conv1": torch.ones(2)})


def test_errors_name_no_file(shot: hookscope.Capture) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(RequestError, match="'zzz' matches nothing in the capture") as caught:
        hookscope.plot(shot, "zzz")
    assert caught.value.hint == "list(capture) returns its keys."
    with pytest.raises(RequestError, match="slice"):
        hookscope.plot(shot, "conv1/output[9]")
