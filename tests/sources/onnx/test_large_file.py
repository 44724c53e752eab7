"""An ONNX file with more than 2 GB of tensors, which no single message of protobuf can hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import hookscope
from tests.sources.onnx.handmade import FLOAT, INT64, model, saved

WIDTH = 1024
ROWS = 600_000  # of the table: 2.46 GB
MEGABYTE = 1 << 20
# Prints how much memory the command took at most, in kilobytes.
MEASURED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""


def external(name: str, shape: tuple[int, ...], offset: int) -> TensorProto:
    """A tensor in the data file, from an offset on."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    length = 4 * int(np.prod(shape))
    for key, value in (("location", "net.onnx.data"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(folder: Path, rows: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Write a file that looks up rows of a table; return the path, three rows and the matrix.

    All other rows are zero and take no place on the disk.
    """
    folder.mkdir()
    proto = model(
        [
            helper.make_node("Gather", ["table", "ids"], ["h"], name="embed"),
            helper.make_node("MatMul", ["h", "w"], ["s"], name="hidden"),
            helper.make_node("Relu", ["s"], ["y"], name="out"),
        ],
        [("ids", INT64, [1, "n"])],
        [("y", FLOAT, [1, "n", WIDTH])],
    )
    end = 4 * rows * WIDTH
    tensors = [external("table", (rows, WIDTH), 0), external("w", (WIDTH, WIDTH), end)]
    proto.graph.initializer.extend(tensors)
    rng = np.random.default_rng(0)
    known = rng.standard_normal((3, WIDTH), np.float32)
    matrix = rng.standard_normal((WIDTH, WIDTH), np.float32)
    places = [0, rows // 2, rows - 1]
    with (folder / "net.onnx.data").open("wb") as file:
        file.truncate(end)
        for place, values in zip(places, known, strict=True):
            file.seek(4 * place * WIDTH)
            file.write(values.tobytes())
        file.seek(end)
        file.write(matrix.tobytes())
    np.save(folder / "ids.npy", np.array([places]))
    return saved(proto, folder / "net.onnx"), known, matrix


def peak(folder: Path, words: Sequence[str]) -> int:
    """Run a command in a folder, and return the bytes of memory that it took at most."""
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "hookscope", *words]
    done = subprocess.run(
        command, cwd=folder, env=os.environ, stdout=subprocess.PIPE, check=True, timeout=500
    )
    code, memory = map(int, done.stdout.split())
    assert code == 0, words
    return memory * 1024


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="a sparse file and wait4 are of Unix")
def test_a_file_of_more_than_2_gb_is_listed_run_and_checked_in_bounded_memory(
    tmp_path: Path,
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    try:
        path, rows, matrix = write(large, ROWS)
        write(small, 1000)
        size = (large / "net.onnx.data").stat().st_size
        assert size > 2**31 + 2**28
        nodes = {node.name: node.parameters for node in hookscope.tree(path).modules}
        assert nodes["embed"] == ROWS * WIDTH and nodes["hidden"] == WIDTH * WIDTH
        shot = hookscope.capture(path, layers=["hidden"], input=str(large / "ids.npy"))
        expected = rows.astype(np.float64) @ matrix.astype(np.float64)
        assert np.allclose(shot["hidden/output"].numpy()[0], expected, rtol=1e-4, atol=1e-3)
        capture = ["capture", "net.onnx", "--layer", "hidden", "--input", "ids.npy", "--no-output"]
        check = ["check", "net.onnx", "--input", "ids.npy"]
        for words in (["tree", "net.onnx", "--shapes"], capture):
            assert peak(large, words) < peak(small, words) + 100 * MEGABYTE, words
        # It reads all values from the mapped file, whose pages the system counts and can drop.
        assert peak(large, check) < peak(small, check) + size + 200 * MEGABYTE
    finally:
        for file in (*large.iterdir(), *small.iterdir()):
            file.unlink()
