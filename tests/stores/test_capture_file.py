"""A capture opened without torch has the values of ``hookscope.load``, in any dtype and slice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError, ResultsFileError, StoreError
from hookscope.hooks.capture import Capture
from hookscope.results.numpy_stats import summarize
from hookscope.specs.tensor_key import Index
from hookscope.stores.capture_file import open_capture
from tests.conftest import REPO
from tests.refusals import refused

FLOAT8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
PLAIN = [
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def kept(**tensors: Tensor) -> Capture:
    capture = Capture()
    for name, tensor in tensors.items():
        capture.put(tensor, module=name, type="T", call=1, what="output", kind="output")
    return capture


def opened(path: Path, tensor: Tensor) -> Any:
    kept(a=tensor).save(path)
    return open_capture(path)


def values(dtype: torch.dtype) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return (torch.randn(3, 4, 5, generator=source) * 3).to(dtype)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_each_dtype_of_numpy_comes_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = values(torch.float32).abs().to(dtype)
    found = opened(tmp_path / "a", tensor).tensor("a/output")
    assert found.tobytes() == tensor.numpy().tobytes()
    assert (found.dtype, found.shape) == (tensor.numpy().dtype, (3, 4, 5))


def test_every_bfloat16_is_widened_to_itself(tmp_path: Path) -> None:
    tensor = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    found = opened(tmp_path / "a", tensor).tensor("a/output")
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.int32), tensor.float().numpy().view(np.int32))


@pytest.mark.parametrize("name", FLOAT8)
def test_every_float8_is_widened_to_itself(name: str, tmp_path: Path) -> None:
    tensor = torch.arange(256).to(torch.uint8).view(getattr(torch, f"float8_{name}"))
    found = opened(tmp_path / "a", tensor).tensor("a/output")
    assert np.array_equal(found, tensor.float().numpy(), equal_nan=True)
    numbers = ~np.isnan(found)  # the sign of a NaN has no meaning
    assert np.array_equal(np.signbit(found[numbers]), np.signbit(tensor.float().numpy()[numbers]))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex128], ids=str)
def test_complex_numbers_stored_as_pairs_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    real = torch.tensor([1.0, float("inf"), 3.0, -0.0])
    tensor = torch.complex(real.double(), real.flip(0).double()).to(dtype).reshape(2, 2)
    file = opened(tmp_path / "a", tensor)
    wide = tensor.to(torch.complex64 if dtype is torch.complex32 else dtype).numpy()
    assert file.tensor("a/output").tobytes() == wide.tobytes()
    assert file.tensor("a/output", (1,)).tobytes() == wide[1].tobytes()
    assert file.shape("a/output") == (2, 2)


@pytest.mark.parametrize(
    "index",
    [
        (0,),
        (-1, 2),
        (0, 3, 4),
        (slice(1, 3),),
        (..., 0),
        (slice(None), 1, slice(None, None, 2)),
        (slice(None, None, -1),),
        (slice(5, 9),),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_slice_is_numpys(dtype: torch.dtype, index: Index, tmp_path: Path) -> None:
    tensor = values(dtype)
    file, whole = opened(tmp_path / "a", tensor), tensor.float().numpy()
    assert np.array_equal(file.tensor("a/output", index), whole[index])
    assert file.shape("a/output", index) == whole[index].shape
    joined = [piece.copy() for piece in file.blocks("a/output", index)]
    assert np.array_equal(np.concatenate([*joined, []]), whole[index].reshape(-1))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_single_numbers_and_empty_tensors_come_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = opened(tmp_path / "a", torch.ones(shape)).tensor("a/output")
    assert np.array_equal(found, np.ones(shape, np.float32)) and found.shape == shape


def test_what_the_header_tells_is_what_load_tells(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Identity())
    with hookscope.record(model, what=["output", "input"]) as capture:
        model(torch.ones(1, 3, 8, 8))
    capture.save(tmp_path / "a")
    loaded, found = hookscope.load(tmp_path / "a"), open_capture(tmp_path / "a")
    assert found.records == loaded.records
    assert [r.stats for r in found.records] == [r.stats for r in loaded.records]
    assert (found.absent, found.coverage) == (loaded.absent, loaded.coverage)
    assert found.metadata == loaded.metadata
    for key, tensor in loaded.items():
        assert np.array_equal(found.tensor(key), tensor.numpy())


def test_statistics_are_those_of_the_run(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64):
        tensor = torch.randn(700, 900).mul(9).to(dtype)
        if dtype.is_floating_point:
            tensor[0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
        file = opened(tmp_path / "a", tensor)
        found, stored = summarize(file.blocks("a/output")), file.records[0].stats
        assert vars(found) == pytest.approx(vars(stored), rel=1e-9), dtype


def test_what_cannot_be_opened_is_told_with_what_it_is(tmp_path: Path) -> None:
    save_file({"a": torch.ones(9)}, tmp_path / "whole")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-8])
    (tmp_path / "empty").touch()
    (tmp_path / "note").write_text("hello, this is no safetensors file")
    save_file({"a": torch.ones(1)}, tmp_path / "other")
    save_file({"a": torch.ones(1)}, tmp_path / "new", metadata={"hookscope": '{"schema": 99}'})
    save_file({"a": torch.ones(1)}, tmp_path / "odd", metadata={"hookscope": '{"schema": 1}'})
    for name, message in {
        "missing": "no such",
        ".": "a folder",
        "cut": "cut off",
        "empty": "empty",
        "note": "text",
        "other": "other",
        "new": "99",
        "odd": "odd",
    }.items():
        with pytest.raises(StoreError, match=message):
            open_capture(tmp_path / name)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("name", "hint"),
    [("five.png", "capture --input {}"), ("digits_scripted.pt", "capture {}"), ("a.npy", "numpy")],
)
def test_a_file_of_another_type_is_named_with_what_to_do_with_it(
    tmp_path: Path, name: str, hint: str
) -> None:
    path = REPO / "sample_models" / name
    if not path.exists():
        path = tmp_path / name
        np.save(path, np.zeros(2))
    with refused(ResultsFileError, name, hint=hint.format(path)):
        open_capture(path)


def test_a_record_without_its_tensor_is_damage(tmp_path: Path) -> None:
    capture = kept(a=torch.ones(1), b=torch.ones(1))
    del capture._tensors["b/output"]
    capture.save(tmp_path / "a")
    for read in (open_capture, hookscope.load):
        with pytest.raises(StoreError, match="damaged"):
            read(tmp_path / "a")


def test_wrong_keys_and_slices_say_what_there_is(tmp_path: Path) -> None:
    file = opened(tmp_path / "a", torch.ones(2, 3))
    with refused(RequestError, hint="a/output"):
        file.tensor("a/outptu")
    for index in ((2,), (0, 0, 0), (..., ...)):
        with pytest.raises(RequestError, match="2x3"):
            file.tensor("a/output", index)


def test_a_dtype_without_a_table_is_refused_and_the_rest_opens(tmp_path: Path) -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    source = Capture()
    source._tensors["a/output"] = packed
    plain = kept(a=torch.zeros(4))
    source._records = plain._records
    source.save(tmp_path / "a")
    file = open_capture(tmp_path / "a")
    with pytest.raises(StoreError, match="cannot be shown"):
        file.tensor("a/output")


@pytest.mark.slow
def test_reading_values_imports_no_torch(tmp_path: Path) -> None:
    kept(a=torch.ones(2, 2).bfloat16()).save(tmp_path / "a")
    code = (
        "import sys; from hookscope.stores.capture_file import open_capture\n"
        "print(open_capture(sys.argv[1]).tensor('a/output').sum(), 'torch' in sys.modules)"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "a")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["4.0", "False"]
