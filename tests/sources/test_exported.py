"""Programs of torch.export as ordinary modules: names, calls, values and gradients of the model."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree
from torchvision import models

import hookscope
from hookscope import load_model as load
from hookscope.errors import InputError, ModelError, RequestError
from hookscope.sources.exported.exported_source import to_module
from hookscope.sources.meta import meta_copy
from hookscope.tensors.nested import as_call
from tests.refusals import refused
from tests.zoo import Module

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm")


def built(name: str) -> nn.Module:
    """A torchvision model with weights that keep values apart from one another."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = {"googlenet": {"init_weights": False, "aux_logits": False}}
        model = models.get_model(name, weights=None, **plain.get(name, {})).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """The model and the file that it was exported to."""
    model, path = built("resnet18"), tmp_path_factory.mktemp("exported") / "resnet 18.pt2"
    model.conv1.weight.requires_grad_(False)
    torch.export.save(torch.export.export(model, (torch.randn(1, 3, 64, 64),)), path)
    return model, path


def by_hand(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """Every output of every call, as clones, and under the name with ``.grad`` its gradient."""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            def keep_one(tensor: Any) -> Any:
                if not isinstance(tensor, Tensor):
                    return tensor
                found.setdefault(name, []).append(tensor.detach().clone())
                if not tensor.requires_grad:
                    return tensor
                clone = tensor.clone()
                clone.register_hook(lambda g: found.setdefault(f"{name}.grad", []).append(g))
                return clone

            return pytree.tree_map(keep_one, output)

        return hook

    handles = [m.register_forward_hook(keep(name)) for name, m in model.named_modules()]
    try:
        outputs = pytree.tree_leaves(model(*args, **kwargs))
        sum(out.sum() for out in outputs if isinstance(out, Tensor)).backward()
    finally:
        for handle in handles:
            handle.remove()
    return found


def check_agreement(model: nn.Module, exported: nn.Module, *args: Any, **kwargs: Any) -> None:
    eager, ours = (by_hand(m, *args, **kwargs) for m in (model, exported))
    assert eager.keys() == ours.keys()
    for name, tensors in eager.items():
        assert len(tensors) == len(ours[name]), name
        assert all(map(torch.equal, tensors, ours[name])), name
    parameters = dict(exported.named_parameters())
    for name, parameter in model.named_parameters():
        theirs = parameters.pop(name)
        assert parameter.requires_grad == theirs.requires_grad
        assert (parameter.grad is None) == (theirs.grad is None)
        assert parameter.grad is None or torch.equal(parameter.grad, theirs.grad)
    assert not parameters
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in exported.named_buffers()]


def kinds(model: nn.Module) -> list[tuple[str, str]]:
    return [(name, type(module).__name__) for name, module in model.named_modules()]


OTHERS = ["mobilenet_v3_small", "googlenet", "vit_b_16", "densenet121"]


@pytest.mark.parametrize(
    "name", ["resnet18", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_names_classes_calls_values_and_gradients_are_those_of_the_model(
    resnet: tuple[nn.Module, Path], tmp_path: Path, name: str
) -> None:
    model, path = resnet if name == "resnet18" else (built(name), tmp_path / "net.pt2")
    if name != "resnet18":
        side = 224 if name.startswith("vit") else 64
        torch.export.save(torch.export.export(model, (torch.randn(1, 3, side, side),)), path)
    loaded = load(path)
    theirs, ours = dict(kinds(model)), dict(kinds(loaded.module))
    assert list(theirs) == list(ours)
    plain = {"Module"} if name != "resnet18" else set()
    assert {name for name in ours if ours[name] not in {theirs[name], *plain}} == set()
    check_agreement(model, loaded.module, *loaded.example(0)[0])


def test_both_calls_of_a_module_are_recorded_under_one_name(resnet: tuple[nn.Module, Path]) -> None:
    shot = hookscope.capture(resnet[1], layers="layer3.0.relu")
    assert {record.key: record.type for record in shot.records} == {
        "layer3.0.relu/output": "ReLU",
        "layer3.0.relu:2/output": "ReLU",
    }


def test_what_is_known_of_a_file_is_told(
    resnet: tuple[nn.Module, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hookscope"), warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load(resnet[1])
    assert (loaded.name, loaded.source, loaded.shape) == ("resnet_18", "exported", (1, 3, 64, 64))
    assert loaded.weights.name == "as saved"
    assert loaded.weights.blake3 == blake3(resnet[1].read_bytes()).hexdigest()
    assert caplog.messages == [f"weights: as saved in {resnet[1]}"]


def test_the_input_of_the_export_is_handed_out_as_a_copy(resnet: tuple[nn.Module, Path]) -> None:
    loaded = load(resnet[1])
    [first], _ = as_call(loaded.example(0))
    kept = first.clone()
    first.zero_()
    [second], kwargs = as_call(loaded.example(1))
    assert torch.equal(second, kept)
    assert not kwargs


def test_copies_and_moved_models_run(resnet: tuple[nn.Module, Path]) -> None:
    module = load(resnet[1]).module
    x = torch.randn(1, 3, 64, 64)
    expected = module(x)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    ghost = meta_copy(module)
    assert all(p.is_meta for p in ghost.parameters())
    assert ghost(x.to("meta")).shape == expected.shape
    wide = copy.deepcopy(module).to(torch.float64)
    torch.testing.assert_close(wide(x.double()), expected.double(), atol=1e-3, rtol=1e-3)


def test_weights_and_arguments_are_refused(resnet: tuple[nn.Module, Path], repo: Path) -> None:
    weights = repo / "sample_models" / "digits.safetensors"
    for given in ({"weights": weights}, {"model_args": {"width": "8"}}):
        with pytest.raises(RequestError, match="weights"):
            load(resnet[1], **given)


def test_training_mode_is_refused_and_eval_is_not(resnet: tuple[nn.Module, Path]) -> None:
    module = load(resnet[1]).module
    module.eval()
    with refused(RequestError, hint="--train"):
        module.train()
    assert not any(m.training for m in module.modules())


def many(self: Any, x: Tensor, *, index: Tensor) -> dict[str, Tensor]:
    """Calls a block twice and differently; has constants, a keyword, outputs in a dict."""
    self.seen.add_(1)
    y = self.block(x) + self.block(x.relu(), scale=2.0) + self.shift
    y = self.tied(self.each[0](y)) + torch.tensor([1.0, 2.0, 3.0, 4.0])
    return {"out": y[index], "ones": torch.ones(y.shape[0], device=y.device)}


def test_a_model_of_many_ways_agrees_call_by_call(tmp_path: Path) -> None:
    block = Module(
        lambda self, x, scale=1.0: self.act(self.calls(self.act(x))) * scale,
        calls=nn.Linear(4, 4),  # a name that the modules of hookscope might want
        act=nn.ReLU(),
    )
    each, tied = nn.ModuleList([nn.Linear(4, 4)]), nn.Linear(4, 4)
    tied.weight = each[0].weight
    model, path = Module(many, block=block, each=each, tied=tied).eval(), tmp_path / "many.pt2"
    model.register_buffer("seen", torch.zeros(1))
    model.shift = torch.arange(4.0)
    x, index = torch.randn(3, 4), torch.tensor([2, 0])
    torch.export.save(torch.export.export(model, (x,), {"index": index}), path)
    loaded = load(path)
    model.seen.zero_()
    check_agreement(model, loaded.module, x, index=index)
    assert len(by_hand(loaded.module, x, index=index)["block.act"]) == 4
    assert loaded.shape is None
    args, kwargs = as_call(loaded.example(0))
    assert torch.equal(args[0], x)
    assert torch.equal(kwargs["index"], index)
    assert loaded.module.tied.weight is loaded.module.get_submodule("each.0").weight
    assert int(loaded.module.get_buffer("seen")) == 2
    assert dict(kinds(loaded.module))["each"] == "Module"  # containers do nothing, and leave none
    ghost = meta_copy(loaded.module)(x.to("meta"), index=index.to("meta"))
    assert [tensor.is_meta for tensor in ghost.values()] == [True, True]


def test_modules_under_no_grad_are_layers_too(tmp_path: Path) -> None:
    def forward(self: Any, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = self.act(self.back(x))[index]
            self.seen.add_(1)
        return self.act(self.head(y)), y  # the activation is called outside as well

    back = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = Module(forward, back=back, act=nn.ReLU(), head=nn.Linear(4, 5))
    model.register_buffer("seen", torch.zeros(1))
    path = tmp_path / "net.pt2"
    x, index = torch.randn(2, 4), torch.tensor([0, 1])
    torch.export.save(torch.export.export(model, (x, index)), path)
    exported = load(path).module
    model.seen.zero_()
    check_agreement(model, exported, x, index)
    assert kinds(exported) == kinds(model)
    assert torch.equal(model.seen, exported.get_buffer("seen"))
    with pytest.raises(IndexError):
        exported(x, index + 9)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        exported(x, index)
        assert not torch.is_grad_enabled()


def test_modules_in_nested_blocks_are_layers_too() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.b(self.a(x))
            with torch.enable_grad():
                return self.d(self.c(x))

    model = Module(forward, **{name: nn.Linear(4, 4) for name in "abcd"})
    # From a file it would not come back: torch 2.15 cannot load what it saves of nested blocks.
    exported = to_module(torch.export.export(model, (torch.ones(1, 4),)))
    check_agreement(model, exported, torch.randn(1, 4))


def test_a_live_program_is_adopted_with_weights_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    program = torch.export.export(model, (torch.ones(1, 4),))
    module = to_module(program)
    assert kinds(module) == [("", "Sequential"), ("0", "Linear"), ("1", "ReLU")]
    nn.init.zeros_(module.get_parameter("0.weight"))
    assert program.state_dict["0.weight"].any()
    assert "weight=2x4" in repr(module)


def test_a_program_exported_in_training_mode_trains_its_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    x = torch.randn(4, 3)
    module = to_module(torch.export.export(model, (x,)))
    assert torch.equal(module(x), model(x))
    assert torch.equal(module.get_buffer("0.running_mean"), model[0].running_mean)


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor, times: int = 1) -> Tensor:
        return x.sum(1) + y.reshape(-1, 2).sum(1) * times


@pytest.fixture(scope="module")
def free() -> nn.Module:
    """A program of x (N x M x 3) and y (2 N), N from 2 to 8 and M from 4."""
    n, m = Dim("n", min=2, max=8), Dim("m", min=4)
    shapes = ({0: n, 1: m}, {0: 2 * n}, None)
    given = (torch.ones(3, 5), torch.ones(6), 2)
    return to_module(torch.export.export(Pair(), given, dynamic_shapes=shapes))


def test_lengths_that_were_left_free_may_vary(free: nn.Module) -> None:
    x, y = torch.randn(7, 9), torch.randn(14)
    assert torch.equal(free(x, y, 2), Pair()(x, y, 2))


ONES = torch.ones(1, 3, 64, 64)
REFUSED: list[tuple[str, tuple[Any, ...], str, str]] = [
    ("free", ((9, 5), (18,), 2), "x of shape NxM (N from 2 to 8, M 4 or more), but got 9x5.", ""),
    ("free", ((3, 3), (6,), 2), "3x3", ""),
    ("free", ((3,), (6,), 2), "but got 3.", ""),
    ("free", ((3, 5), (8,), 2), "y of shape (2*N) (N from 2 to 8), but got 8.", ""),
    ("free", ((3, 5), (6,), 3), "times = 2, but got 3", ""),
    ("resnet", ((1, 3, 9, 9),), "1x3x64x64, but got 1x3x9x9.", "--shape 1x3x64x64"),
    ("resnet", ((3, 64, 64),), "3x64x64", "dynamic_shapes"),
    ("resnet", (ONES.long(),), "float32, but got int64", "--input"),
    ("resnet", ((1,), 3), "(x), but got (tensor of 1, int).", "in its file"),
    ("resnet", (3,), "tensor, but got int.", "1x3x64x64"),
    ("resnet", (), "(x), but got ().", "in its file"),
]


@pytest.mark.parametrize(("program", "given", "message", "hint"), REFUSED)
def test_an_input_that_does_not_fit_is_refused_in_one_sentence(
    free: nn.Module,
    resnet: tuple[nn.Module, Path],
    capsys: pytest.CaptureFixture[str],
    program: str,
    given: tuple[Any, ...],
    message: str,
    hint: str,
) -> None:
    module = free if program == "free" else load(resnet[1]).module
    capsys.readouterr()
    with refused(InputError, message=message, hint=hint):
        module(*(torch.ones(one) if isinstance(one, tuple) else one for one in given))
    assert capsys.readouterr().out == ""


def test_a_program_that_was_differentiated_cannot_be_taken_apart() -> None:
    program = torch.export.export(nn.Linear(2, 1), (torch.ones(1, 2),))
    loss = torch.export.graph_signature.OutputKind.LOSS_OUTPUT
    program.graph_signature.output_specs[0].kind = loss
    with pytest.raises(ModelError, match="layers"):
        to_module(program)
