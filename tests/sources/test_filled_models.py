"""Models built without values and filled from a file are bit-identical to others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models

import hookscope
from hookscope.sources import weights
from hookscope.sources.checkpoint import lazy_tensors
from hookscope.sources.loaded import WeightsRequest
from hookscope.sources.meta import ParametersOnMeta
from hookscope.sources.weights import build_from_file
from hookscope.specs.catalog import bundled_models
from hookscope.specs.model_spec import check_weights_file
from tests.zoo import Module, lazy

SOME = ("squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5", "raft_small", "mnasnet0_5")
LARGE = 200_000_000  # parameters; one model of more is left out, for its time and memory


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that are not saved included, under all their names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(chain(parameters, module.named_buffers(remove_duplicate=False)))


def demand_same(ours: nn.Module, plain: nn.Module) -> None:
    mine, theirs = tensors_of(ours), tensors_of(plain)
    assert list(mine) == list(theirs)
    for name, tensor in theirs.items():
        assert type(mine[name]) is type(tensor)
        assert mine[name].device.type == "cpu"
        assert mine[name].stride() == tensor.stride()
        assert mine[name].requires_grad == tensor.requires_grad
        assert torch.equal(mine[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


@dataclass
class Builder:
    """Builds a model from a seed, as a source does, and remembers in which contexts."""

    kind: Callable[[], nn.Module]
    seed: int = 0
    contexts: list[type] = field(default_factory=list)

    def __call__(self, context: AbstractContextManager[object] | None = None) -> nn.Module:
        self.contexts.append(type(context))
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GoogLeNet's, about its own initialisation
            torch.manual_seed(self.seed)
            with context or nullcontext():
                return self.kind()


FILLED, TRULY = [ParametersOnMeta], [ParametersOnMeta, nullcontext]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(model.name, marks=() if model.name in SOME else pytest.mark.exhaustive)
        for model in bundled_models()
        if model.parameters < LARGE
    ],
)
def test_a_torchvision_model_is_filled_to_the_same_bits(tmp_path: Path, name: str) -> None:
    plain = hookscope.load_model(name, seed=1).module
    path = tmp_path / "w.safetensors"
    save_file({n: t.contiguous() for n, t in plain.state_dict().items()}, path)
    state = plain.state_dict()
    plain = hookscope.load_model(name, seed=0).module
    plain.load_state_dict(state)
    ours = hookscope.load_model(name, weights=path, seed=0)
    assert not ours.weights.missing
    assert not ours.weights.unexpected
    demand_same(ours.module, plain)


@pytest.mark.parametrize("name", [*SOME, "swin_t", "fasterrcnn_resnet50_fpn"])
def test_a_torchvision_model_is_built_without_values(tmp_path: Path, name: str) -> None:
    path = tmp_path / "w.pth"
    options = {"weights_backbone": None} if "rcnn" in name else {}
    build = Builder(partial(models.get_model, name, weights=None, **options))
    torch.save(build().state_dict(), path)
    build.contexts.clear()
    build_from_file(build, WeightsRequest(str(path)))
    assert build.contexts == FILLED


def tied() -> Module:
    """One parameter under two names."""
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    return Module(a=a, b=b)


ADDED: dict[str, Callable[[Module], object]] = {
    "a buffer that is not saved": lambda net: net.register_buffer(
        "mask", torch.ones(3, 3).triu(), persistent=False
    ),
    "a tensor that is neither parameter nor buffer": lambda net: setattr(
        net, "tables", {"scale": [torch.full((3,), 2.0)]}
    ),
    "an order drawn after the weights": lambda net: setattr(net, "order", torch.randperm(100)),
    "the largest weight": lambda net: setattr(net, "bound", float(net.layer.weight.abs().max())),
    "two buffers in one memory": lambda net: [
        net.register_buffer(name, half)
        for name, half in zip(("first", "second"), torch.zeros(2, 3), strict=True)
    ],
}


@pytest.mark.parametrize("added", ADDED)
def test_what_a_file_cannot_fill_is_built_truly(tmp_path: Path, added: str) -> None:
    def kind() -> Module:
        net = Module(layer=nn.Linear(3, 3))
        ADDED[added](net)
        return net

    path = tmp_path / "w.pth"
    state = Builder(kind, 1)().state_dict()
    torch.save(state, path)
    build = Builder(kind, 0)
    ours, _ = build_from_file(build, WeightsRequest(str(path)))
    plain = Builder(kind, 0)()
    plain.load_state_dict(state)
    assert build.contexts == TRULY
    demand_same(ours, plain)
    for name in ("tables", "order", "bound"):
        assert str(getattr(ours, name, None)) == str(getattr(plain, name, None))


@pytest.mark.parametrize("misfit", [False, True])
def test_what_the_file_lacks_is_as_built_from_the_seed(tmp_path: Path, misfit: bool) -> None:
    path = tmp_path / "w.safetensors"
    state = {n: t for n, t in Builder(tied, 1)().state_dict().items() if n != "a.bias"}
    if misfit:
        state["b.bias"] = torch.ones(7)
    save_file({n: t.clone() for n, t in state.items()}, path)
    wanted = WeightsRequest(str(path), partial=True)
    build = Builder(tied, 5)
    ours, info = build_from_file(build, wanted)
    plain = Builder(tied, 5)()
    state.pop("b.bias") if misfit else None
    plain.load_state_dict(state, strict=False)
    assert build.contexts == TRULY
    demand_same(ours, plain)
    assert info.missing == (("a.bias", "b.bias") if misfit else ("a.bias",))


SAVES: dict[str, Callable[[dict[str, Tensor], Path], object]] = {
    "safetensors": lambda state, path: save_file({n: t.clone() for n, t in state.items()}, path),
    "torch": torch.save,
    "old torch": partial(torch.save, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", SAVES)
def test_weights_of_any_file_and_dtype_fill_a_model_whose_tied_weight_stays_one(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    path = tmp_path / "w"
    state = {name: value.to(dtype) for name, value in Builder(tied, 1)().state_dict().items()}
    SAVES[kind](state, path)
    build = Builder(tied)
    ours, _ = build_from_file(build, WeightsRequest(str(path)))
    plain = Builder(tied, 0)()
    plain.load_state_dict(state)
    assert build.contexts == FILLED
    assert ours.a.weight is ours.b.weight
    demand_same(ours, plain)


def test_a_model_that_loads_in_its_own_way_gets_the_values(tmp_path: Path) -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.zeros(6, 2))

        def _load_from_state_dict(self, state: dict[str, Tensor], *args: object) -> None:
            state["qkv"] = torch.cat([state.pop(name) for name in "qkv"])
            super()._load_from_state_dict(state, *args)

    path, parts = tmp_path / "w.safetensors", torch.randn(3, 2, 2)
    more = {"qkv": torch.zeros(6, 2)}  # so that some name is the model's
    save_file({**dict(zip("qkv", parts.clone().unbind(), strict=True)), **more}, path)
    module = Fused()
    weights.load_file_into(module, WeightsRequest(str(path)))
    assert torch.equal(module.qkv, parts.reshape(6, 2))


def test_a_lazy_model_takes_its_shapes_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    stored, net = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), lazy()
    save_file(stored.state_dict(), path)
    weights.load_file_into(net, WeightsRequest(str(path)))
    x = torch.randn(2, 5)
    assert torch.equal(net(x), stored(x))


def test_tensors_are_read_when_they_are_used_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(3), "b": torch.zeros(2, 2, dtype=torch.int8)}, path)
    found = lazy_tensors(check_weights_file(str(path)))
    path.unlink()
    assert (found["b"].shape, found["b"].dtype) == ((2, 2), torch.int8)
    with pytest.raises(Exception, match=str(path)):
        found["a"] + 1
