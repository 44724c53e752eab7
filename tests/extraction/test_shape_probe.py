"""The shape probe before the first row: it runs the model as later, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import ForwardError, InputError, LayerError
from hookscope.execution.trial_pass import TrialModel
from hookscope.extraction import shape_probe
from hookscope.hooks.layers import layers_of
from hookscope.specs.tensor_key import OUTPUT
from tests.refusals import refused
from tests.zoo.specimen import Module

from .conftest import extract_photos


class Branching(nn.Module):
    """A model that reads values, and returns more in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        self.auxiliary = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(x)
        if x.sum() > 1e9:
            x = -x
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


VALUES = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))


def extract(model: object, folder: Path, values: Tensor = VALUES, **more):
    more = {"batch": 3, "shard_size": 1, "workers": 0, "layers": "*"} | more
    return hookscope.extract(model, folder, input=TensorDataset(values), **more)


def test_a_model_in_training_is_probed_as_it_runs_and_left_as_it_was(tmp_path) -> None:
    model = Branching().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    extract(model, tmp_path / "out")
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    features = hookscope.load(tmp_path / "out")
    assert features.keys == ("norm/output", "head/output", "./output")
    assert torch.equal(features["head"].torch()[:], model.eval()(VALUES))


@pytest.mark.parametrize("word", ["float16", "bfloat16", "float64"])
def test_photos_are_given_to_the_model_in_its_dtype(photos, tmp_path, word) -> None:
    extract_photos(photos, tmp_path / "out", batch=12, dtype=word)
    files = sorted(str(path) for path in photos.iterdir() if path.suffix != ".txt")
    more = {"layers": ["relu", "head"], "dtype": word}
    shot = hookscope.capture(f"{tmp_path}/small.py:Small", input=files, **more)
    features = hookscope.load(tmp_path / "out")
    for key in shot:
        assert shot[key].dtype == getattr(torch, word)
        assert torch.equal(features[key].torch()[:], shot[key]), key


def test_items_of_another_dtype_become_the_models(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    extract(model, tmp_path / "out", VALUES.double(), layers="0")
    found = hookscope.load(tmp_path / "out")["0"].torch()[:]
    assert torch.equal(found, model(VALUES))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_rows_are_of_the_dtype_that_it_gives(tmp_path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    extract(model, tmp_path / "out", layers="0", autocast=str(dtype).removeprefix("torch."))
    with torch.autocast("cpu", dtype):
        expected = model(VALUES)
    found = hookscope.load(tmp_path / "out")["0"].torch()[:]
    assert (found.dtype, expected.dtype) == (dtype, dtype)
    assert torch.equal(found, expected)


def is_small(x: Tensor) -> bool:
    try:
        return bool(x.sum() < 1e9)
    except RuntimeError:  # there are no values
        return False


@pytest.mark.parametrize("again", [is_small, lambda x: bool(torch.rand(()) < 2)])
def test_a_model_whose_calls_may_depend_on_data_does_not_stop_early(tmp_path, again) -> None:
    # A run without values may show another call as the last one.
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.part(x)
        return self.head(self.part(x) if again(x) else x)

    model = Module(forward, part=nn.Linear(4, 4), head=nn.Linear(4, 2)).eval()
    done = extract(model, tmp_path / "out", layers="part", batch=6)
    assert done.manifest["stopped_after"] is None
    features = hookscope.load(tmp_path / "out")
    assert features.keys == ("part/output", "part:2/output")
    assert torch.equal(features["part:2/output"].torch()[:], model.part(model.part(VALUES)))


def test_what_the_model_raises_names_the_layer(tmp_path) -> None:
    with pytest.raises(ForwardError, match=r"0 \(Linear\)") as caught:
        extract(nn.Sequential(nn.Linear(5, 2)), tmp_path / "out", layers="0")
    assert caught.value.layer == "0"


def test_a_program_for_one_input_is_refused_with_a_repair_that_there_is(tmp_path) -> None:
    program = torch.export.export(nn.Linear(4, 2), (VALUES[:1],))
    with refused(InputError, "1x4.* 2x4", hint="dynamic_shapes"):
        extract(program, tmp_path / "out", layers=".")


class Odd(nn.Module):
    """Sizes that may be taken for the number of rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.constant, self.folded = nn.Identity(), nn.Identity()
        self.last, self.norm = nn.Linear(4, width), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        if self.width % 2:
            self.constant(torch.arange(self.width))
            self.folded(x.reshape(-1, 2))
        return self.last(self.norm(x)).t()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (torchvision.models.resnet18, (3, 64, 64)),
    "vit": (partial(torchvision.models.VisionTransformer, 32, 16, 2, 2, 16, 16), (3, 32, 32)),
    "lstm": (lambda: nn.LSTM(5, 7), (9, 5)),  # the rows are the second dimension
    "bfloat16": (lambda: torchvision.models.resnet18().bfloat16(), (3, 64, 64)),
    **{f"width {n}": (partial(Odd, n), (4,)) for n in (5, 6, 7, 14, 77, 17017)},
}


@pytest.mark.parametrize("name", NETS)
def test_one_pass_finds_the_rows_that_two_passes_find(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, shape = NETS[name]
    model = make()
    layers = layers_of(model)
    dtype = next(model.parameters()).dtype

    def inputs(rows: int) -> Tensor:
        sizes = (shape[0], rows, *shape[1:]) if name == "lstm" else (rows, *shape)
        return torch.randn(sizes, dtype=dtype)

    def probed() -> object:
        try:
            found = shape_probe.probe_shapes(model, layers, {OUTPUT}, inputs)
        except LayerError as error:
            return str(error)
        records = [(x.record.key, x.dim, x.shape, x.dtype) for x in found.columns]
        return records, found.last

    once = probed()
    monkeypatch.setattr(shape_probe, "ONE_PASS", ())
    assert once == probed()


def test_a_trial_pass_refuses_a_batch_normalization_that_does_not_fit() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(5)).eval()
    trial = TrialModel(model, layers_of(model), train=False, seed=0)
    with pytest.raises(RuntimeError, match="running_mean"):
        trial.run({OUTPUT}, torch.zeros(2, 3, 8, 8))
