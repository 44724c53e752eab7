"""Torchvision's models, scripted and traced, against the models they were made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import hookscope
from tools.scripted_models import WAYS, compare

# One of each kind that scripts or traces in its own way.
SAMPLE = (
    "resnet18",  # modules called twice, in-place additions
    "densenet121",  # an overloaded forward, lists of tensors
    "googlenet",  # warns, and gives a named tuple
    "mobilenet_v3_small",
    "swin_t",  # control flow, functions, StochasticDepth
    "lraspp_mobilenet_v3_large",  # gives a dict
    "fasterrcnn_mobilenet_v3_large_320_fpn",  # operators of torchvision, lists of dicts
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With several threads, a gradient can depend on where in memory the parameters are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.sampled(14)
@pytest.mark.filterwarnings("ignore")  # of torchvision and the compiler, about themselves
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [
        *SAMPLE,
        *(
            pytest.param(model.name, marks=pytest.mark.exhaustive)
            for model in hookscope.models()
            if model.name not in SAMPLE
        ),
    ],
)
def test_a_file_gives_the_values_and_gradients_of_its_model(
    name: str, way: str, tmp_path: Path
) -> None:
    found = compare(name, way, tmp_path)
    if found.refused:
        pytest.skip(f"PyTorch makes no such file: {found.refused}")
    assert found.same_output
    assert found.equal > 0
    assert found.different == ()
    if way == "script":
        assert found.absent == ()
