"""Tensors of every dtype, layout and kind are stored with statistics, or absent with a reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hookscope
from hookscope.errors import HookscopeError, StoreError
from hookscope.hooks.capture import Capture
from hookscope.tensors.tensor_stats import summarize
from tests.zoo import Module

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DENSE = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
LAYOUTS = sorted({v for v in vars(torch).values() if isinstance(v, torch.layout)}, key=str)
LAID_OUT: dict[str, Callable[[], Tensor]] = {
    "torch.strided": lambda: DENSE,
    "torch.sparse_coo": DENSE.to_sparse,
    "torch.sparse_csr": DENSE.to_sparse_csr,
    "torch.sparse_csc": DENSE.to_sparse_csc,
    "torch.sparse_bsr": lambda: DENSE.to_sparse_bsr((1, 1)),
    "torch.sparse_bsc": lambda: DENSE.to_sparse_bsc((1, 1)),
    "torch._mkldnn": DENSE.to_mkldnn,
    "torch.jagged": lambda: torch.nested.nested_tensor(list(DENSE), layout=torch.jagged),
}
QUANTIZED: dict[str, Callable[[], Tensor]] = {
    str(dtype): lambda dtype=dtype: torch.quantize_per_tensor(DENSE, 0.5, 0, dtype)
    for dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)
} | {
    "channels": lambda: torch.quantize_per_channel(
        DENSE, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0, torch.qint8
    ),
    "float_channels": lambda: torch.quantize_per_channel(
        DENSE, torch.ones(2), torch.zeros(2), 0, torch.quint8
    ),
}


def of_dtype(dtype: torch.dtype) -> Tensor:
    try:
        return DENSE.to(dtype)
    except (RuntimeError, NotImplementedError):
        pass
    try:
        return DENSE.to(torch.uint8).view(dtype)
    except (RuntimeError, NotImplementedError):
        return torch.empty(2, 2, dtype=dtype)


def recorded(value: Tensor) -> Capture:
    with hookscope.record(net := Module(lambda self, x: value)) as capture:
        assert net(torch.zeros(1)) is value
    return capture


def demand_stored_or_absent(value: Tensor, folder: Path) -> Capture:
    """What is recorded has statistics and survives its file; what is not has a reason."""
    capture = recorded(value)
    for record in capture.records:
        assert record.stats.numel == capture[record.key].numel()
    capture.save(folder / "odd.safetensors")
    again = hookscope.load(folder / "odd.safetensors")
    assert list(again) == list(capture)
    assert [r.stats for r in again.records] == [r.stats for r in capture.records]
    assert again.absent == capture.absent
    assert bool(capture.records) != bool(capture.absent)
    for absent in capture.absent:
        assert absent.reason
        with pytest.raises(HookscopeError, match="statistics"):
            summarize(value)
    return capture


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_stored_or_absent(dtype: torch.dtype, tmp_path: Path) -> None:
    value = of_dtype(dtype)
    capture = demand_stored_or_absent(value, tmp_path)
    name = str(dtype).removeprefix("torch.")
    if capture.absent:
        assert f"of dtype {name}" in capture.absent[0].reason
    else:
        assert capture.records[0].dtype == name
        assert capture.records[0].stats.max == value.to(torch.complex128).abs().max()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_is_stored_by_its_values(layout: torch.layout, tmp_path: Path) -> None:
    capture = demand_stored_or_absent(LAID_OUT[str(layout)](), tmp_path)
    again = hookscope.load(tmp_path / "odd.safetensors")
    assert torch.equal(torch.cat([again[key].reshape(-1) for key in again]), DENSE.reshape(-1))
    assert not capture.absent


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_quantized_tensor_is_stored_or_absent(name: str, tmp_path: Path) -> None:
    value = QUANTIZED[name]()
    capture = demand_stored_or_absent(value, tmp_path)
    if not capture.absent:
        (stored,) = hookscope.load(tmp_path / "odd.safetensors").values()
        assert torch.equal(stored, value.dequantize())


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: torch.masked.masked_tensor(DENSE, DENSE > 0), "MaskedTensor"),
        (lambda: DENSE.to("meta"), "meta device"),
        (lambda: FakeTensorMode().from_tensor(DENSE), "FakeTensor"),
        (lambda: torch.empty(0, 3, device="meta"), "meta device"),
    ],
)
def test_tensors_without_values_are_absent(
    make: Callable[[], Tensor], word: str, tmp_path: Path
) -> None:
    capture = demand_stored_or_absent(make(), tmp_path)
    assert word in capture.absent[0].reason


def test_a_distributed_tensor_is_absent(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    if not dist.is_available() or os.name == "nt":
        pytest.skip("no process groups here")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        value = distribute_tensor(DENSE, init_device_mesh("cpu", (1,)), [Shard(0)])
        capture = demand_stored_or_absent(value, tmp_path)
    finally:
        dist.destroy_process_group()
    assert "DTensor" in capture.absent[0].reason


def test_a_nested_tensor_has_statistics_by_its_components() -> None:
    with pytest.raises(HookscopeError, match="nested"):
        summarize(torch.nested.nested_tensor(list(DENSE)))


def test_a_subclass_with_values_of_its_own_is_recorded(tmp_path: Path) -> None:
    class Named(Tensor):
        pass

    assert not demand_stored_or_absent(DENSE.as_subclass(Named), tmp_path).absent


def test_a_masked_gradient_is_absent_and_the_backward_pass_ends() -> None:
    masks = Module(lambda self, x: torch.masked.as_masked_tensor(x, x.detach() > 0))
    net = nn.Sequential(nn.Identity(), masks)
    x = DENSE.clone().requires_grad_()
    with hookscope.record(net, grads=True) as capture:
        net(x).sum().backward()
    assert x.grad is not None
    assert {absent.module for absent in capture.absent} >= {".", "1"}
    for record in capture.records:
        assert record.stats.numel == 4


def test_a_dtype_that_the_format_lacks_is_refused_in_a_sentence(tmp_path: Path) -> None:
    capture = Capture()
    put = {"module": ".", "type": "X", "call": 1, "kind": "output"}
    capture.put(torch.zeros(1), what="output", **put)
    capture._tensors["./output"] = torch.empty(2, dtype=torch.bits8)
    with pytest.raises(StoreError, match="bits8"):
        capture.save(tmp_path / "odd.safetensors")
    assert not (tmp_path / "odd.safetensors").exists()
