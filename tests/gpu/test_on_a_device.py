"""What hookscope records on a GPU is what hooks written by hand keep there, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import hookscope
from tests.oracle.by_hand import outputs, same_bits, slipped_in

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def resnet(device: str) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=10).eval().to(device)


def images(device: str, rows: int = 4) -> Tensor:
    made = torch.randn(rows, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    return made.to(device)


def forms(form: str, device: str) -> tuple[nn.Module, Tensor, AbstractContextManager[Any]]:
    """A model, an input, and what surrounds the run."""
    model, x = resnet(device), images(device)
    kind = torch.device(device).type
    if form == "channels_last":
        return (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
            nullcontext(),
        )
    if form == "bfloat16":
        return model.bfloat16(), x.bfloat16(), nullcontext()
    if form == "autocast":
        return model, x, torch.autocast(kind, torch.bfloat16)
    return model, x, nullcontext()


@pytest.mark.parametrize("form", ["float32", "channels_last", "bfloat16", "autocast"])
def test_each_output_has_the_bits_of_a_hook_by_hand(device: str, form: str) -> None:
    model, x, around = forms(form, device)
    with around, torch.no_grad():
        expected = outputs(model, x)
        with hookscope.record(model) as capture:
            model(x)
    assert capture.keys() == expected.keys()
    for key, value in expected.items():
        assert capture[key].device == value.device and same_bits(capture[key], value), key


def test_each_gradient_is_that_of_autograd(device: str) -> None:
    model, x = resnet(device), images(device)
    with slipped_in(model, inputs=False) as kept:
        loss = model(x).square().mean()
    expected = dict(zip(kept, torch.autograd.grad(loss, list(kept.values())), strict=True))
    with hookscope.record(model, grads=True) as capture:
        loss = model(x).square().mean()
        loss.backward()
    for key, value in expected.items():
        torch.testing.assert_close(capture[f"{key}.grad"], value, rtol=1e-4, atol=1e-7)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        module, _, own = name.rpartition(".")
        assert same_bits(capture[f"{module}/{own}.grad"], parameter.grad)


def test_an_edit_is_the_hook_by_hand(device: str) -> None:
    model, x = resnet(device), images(device)
    shot = hookscope.capture(model, input=x, edits="layer2=scale:0.5", layers="fc")
    handle = model.get_submodule("layer2").register_forward_hook(lambda m, a, output: output * 0.5)
    with torch.no_grad():
        expected = model(x)
    handle.remove()
    assert same_bits(shot["fc"].to(device), expected)


def test_values_come_to_the_host_as_arrays(device: str) -> None:
    model, x = resnet(device), images(device)
    with hookscope.record(model, layers="layer4") as capture, torch.no_grad():
        model(x)
    assert capture["layer4"].device.type == torch.device(device).type
    array = capture.numpy("layer4/output")
    assert isinstance(array, np.ndarray) and np.array_equal(array, capture["layer4"].cpu().numpy())


def test_values_that_are_copied_to_the_host_are_those_of_the_device(device: str) -> None:
    model, x = resnet(device), images(device)
    with torch.no_grad():
        expected = outputs(model, x)  # some of which the model overwrites in place
        with hookscope.record(model, device="cpu") as capture:
            model(x)
    assert all(value.device.type == "cpu" for value in capture.values())
    assert capture.keys() == expected.keys()
    assert all(same_bits(capture[key], value.cpu()) for key, value in expected.items())


def test_a_whole_dataset_has_the_rows_of_a_loop_by_hand(device: str, tmp_path: Path) -> None:
    model, x = resnet(device), images("cpu", 10)
    hookscope.extract(
        model, tmp_path / "f", layers="avgpool", input=torch.utils.data.TensorDataset(x), batch=4
    )
    kept = []
    handle = model.get_submodule("avgpool").register_forward_hook(
        lambda module, args, output: kept.append(output.flatten(1).cpu())
    )
    with torch.no_grad():
        for part in x.split(4):
            model(part.to(device))
    handle.remove()
    rows = hookscope.load(f"{tmp_path}/f")["avgpool"]
    assert np.array_equal(np.asarray(rows).reshape(10, -1), torch.cat(kept).numpy())


def test_a_sweep_is_a_loop_of_edits(device: str) -> None:
    model, x = resnet(device), images(device, 1)
    chosen = ["layer1", "layer2"]
    found = hookscope.sweep(model, input=x, layers=chosen, edit="zero", target=3)
    clean = hookscope.capture(model, input=x, layers="fc")["fc"][0, 3]
    shots = [hookscope.capture(model, input=x, edits=f"{one}=zero", layers="fc") for one in chosen]
    changes = [float(shot["fc"][0, 3] - clean) for shot in shots]
    assert [cell.score for cell in found.cells] == pytest.approx(changes, rel=1e-4, abs=1e-6)


TRAINING = """
import sys, torch
from torch import nn
device = sys.argv[1]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(30):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), torch.arange(8, device=device) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def test_a_watched_training_with_amp_ends_with_the_same_bits(device: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    ways = ([sys.executable], [sys.executable, "-m", "hookscope", "run", "--every", "1"])
    bare, watched = (
        subprocess.run(
            [*way, "train.py", device],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for way in ways
    )
    assert len(bare.splitlines()) == 30
    assert [line for line in watched.splitlines() if line in bare.splitlines()] == bare.splitlines()


@contextmanager
def one_rank(device: str) -> Iterator[None]:
    backend = "nccl" if device.startswith("cuda") else "gloo"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0"}
    torch.distributed.init_process_group(backend, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_sharded_on_one_rank_is_recorded(device: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        expected = outputs(model, x)
    with one_rank(device):
        sharded = fully_shard(model)
        with hookscope.record(sharded) as capture, torch.no_grad():
            sharded(x)
    assert capture.keys() == expected.keys()
    assert all(same_bits(capture[key], value) for key, value in expected.items())
