"""Ten small models, and changes of them that a fingerprint must find.

Each change names the layer at which it must be found: the first tensor that is computed otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
from hookscope.model_analysis.golden import GoldenModel
from hookscope.results.fingerprint_diff import FingerprintDiff
from hookscope.specs.tolerances import ExactDiffOptions
from tests.zoo import Module


class Residual(nn.Module):
    """A block whose sum is made in its own code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y * self.factor + x)


class Attention(nn.Module):
    """Attention with its softmax as a layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.softmax, self.drop = nn.Softmax(-1), nn.Dropout(0.1)
        self.heads, self.scale = heads, (width // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = self.softmax(q @ k.transpose(-2, -1) * self.scale)
        return self.drop(self.proj((weights @ v).transpose(1, 2).reshape(x.shape)))


def _encoder(width: int) -> nn.Module:
    """A pre-norm block of a transformer."""

    def forward(self: Module, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm2(x)))))

    norms = {"norm1": nn.LayerNorm(width), "attention": Attention(width, 4)}
    layers = {"norm2": nn.LayerNorm(width), "fc1": nn.Linear(width, 2 * width), "act": nn.GELU()}
    layers |= {"fc2": nn.Linear(2 * width, width), "drop": nn.Dropout(0.1)}
    return Module(forward, **norms, **layers)


def _recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    """An embedding, a recurrent layer and a head on its last state."""
    return Module(
        lambda self, x: self.head(self.drop(self.norm(self.rnn(self.embed(x))[0][:, -1]))),
        embed=nn.Embedding(50, 16),
        rnn=kind(16, 24, batch_first=True),
        norm=nn.LayerNorm(24),
        drop=nn.Dropout(0.1),
        head=nn.Linear(24, 5),
    )


def _residual() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 10))
    return nn.Sequential(*stem, Residual(16), Residual(16), *head)


def _plain() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 64, 40), nn.Tanh(), nn.Dropout(0.1), nn.Linear(40, 10)),
    )


def _grouped() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.Hardswish()),
        *(nn.Conv2d(16, 8, 1), nn.Dropout(0.1), nn.Flatten(), nn.LogSoftmax(1)),
    )


def _decoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.InstanceNorm2d(8), nn.LeakyReLU(0.1)),
        *(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Conv2d(8, 3, 3, padding=1), nn.Sigmoid()),
    )


def _series() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(4, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ELU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(16, 16, 3, padding=1), nn.GELU(), nn.Dropout(0.1)),
        *(nn.Flatten(), nn.Linear(16 * 32, 6), nn.Softmax(-1)),
    )


def _dense() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8), nn.Softmax(-1)),
    )


def _transformer() -> nn.Module:
    return nn.Sequential(_encoder(32), _encoder(32), nn.LayerNorm(32), nn.Linear(32, 6))


def _attention() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), Attention(32, 2), nn.LayerNorm(32), nn.Softplus())


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (_plain, (2, 3, 32, 32)),
    "residual": (_residual, (2, 3, 16, 16)),
    "grouped": (_grouped, (2, 3, 16, 16)),
    "decoder": (_decoder, (2, 3, 16, 16)),
    "series": (_series, (2, 4, 64)),
    "dense": (_dense, (4, 30)),
    "transformer": (_transformer, (2, 10, 32)),
    "attention": (_attention, (2, 10, 20)),
    "gru": (lambda: _recurrent(nn.GRU), (2, 12)),
    "lstm": (lambda: _recurrent(nn.LSTM), (2, 12)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """Return a model in eval mode with statistics that are not trivial, and its input."""
    make, shape = NETS[name]
    torch.manual_seed(11)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    recurrent = name in ("gru", "lstm")
    return model.eval(), torch.randint(50, shape) if recurrent else torch.randn(shape)


class Mutant(NamedTuple):
    """A changed model, and the key of a tensor that is the first to change."""

    label: str
    model: nn.Module
    place: str


def mutants(name: str) -> list[Mutant]:
    """Return every change of the kinds below that fits a layer of a model."""
    found = []
    original, _ = build(name)
    for path, module in original.named_modules():
        for label, change in _changes(module):
            model = copy.deepcopy(original)
            replacement = change(model.get_submodule(path))
            if replacement is not None:
                owner, _, last = path.rpartition(".")
                setattr(model.get_submodule(owner), last, replacement)
            where = "relu:2/input.0" if label == "factor" else "softmax/input.0"
            place = f"{path}/output" if label not in ("factor", "scale") else f"{path}.{where}"
            found.append(Mutant(f"{name}: {label} of {path}", model, place))
    return found


def _changes(module: nn.Module) -> list[tuple[str, Callable[[nn.Module], nn.Module | None]]]:
    changes: list[tuple[str, Callable[[nn.Module], nn.Module | None]]] = []
    if hasattr(module, "eps"):
        changes.append(("epsilon", lambda m: setattr(m, "eps", m.eps * 5)))
    if isinstance(module, nn.ReLU | nn.GELU | nn.SiLU | nn.Hardswish | nn.ELU | nn.Tanh):
        other = nn.GELU("tanh") if isinstance(module, nn.GELU) else nn.LeakyReLU(0.01)
        changes.append(("activation", lambda m: other))
    if isinstance(module, nn.Conv2d) and module.padding != (0, 0):
        changes.append(("padding", _padded))
    if isinstance(module, nn.Softmax):
        changes.append(("axis", lambda m: setattr(m, "dim", -2 if m.dim == -1 else -1)))
    if isinstance(module, nn.Dropout):
        changes.append(("dropout on", lambda m: m.train() and None))
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
        changes += [("one weight", _one_weight), ("order", _order)]
    if isinstance(module, Residual):
        changes.append(("factor", lambda m: setattr(m, "factor", 1.001)))
    if isinstance(module, Attention):
        changes.append(("scale", lambda m: setattr(m, "scale", m.scale * 1.01)))
    return changes


def _padded(module: nn.Module) -> None:
    """Reflect at the border in place of zeros."""
    assert isinstance(module, nn.Conv2d)
    margins = [side for side in reversed(module.padding) for _ in range(2)]
    module.padding_mode, module._reversed_padding_repeated_twice = "reflect", margins


def _one_weight(module: nn.Module) -> None:
    """Change the first weight by 1%."""
    with torch.no_grad():
        module.weight.view(-1)[0] *= 1.01


def _order(module: nn.Module) -> None:
    """Swap two output channels."""
    with torch.no_grad():
        module.weight[[0, 1]] = module.weight[[1, 0]]


# Whether the fingerprint finds them, and names the right layer


@pytest.fixture
def changes(tmp_path):
    """The comparison of a model with the file of another one."""

    def compare(known: nn.Module, model: nn.Module, batch: Any) -> FingerprintDiff:
        path = tmp_path / "net.fp"
        if not path.exists():
            GoldenModel(known, batch, "test").write(path)
        return GoldenModel(model, batch, "test").compare(path)

    return compare


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_a_small_change_is_found_at_its_layer(changes, name: str) -> None:
    model, batch = build(name)
    assert changes(model, model, batch).equal == len(changes(model, model, batch).rows)
    for mutant in mutants(name)[::3]:
        found = changes(model, mutant.model, batch)
        assert found.first is not None, mutant.label
        assert found.first.key == mutant.place, mutant.label


def changes_nothing(model: nn.Module, other: nn.Module, batch: torch.Tensor) -> bool:
    """Whether the outputs differ by less than float32 can represent, as a run in float64 shows."""
    exact = batch.double() if batch.is_floating_point() else batch
    with torch.no_grad():
        a, b = (copy.deepcopy(each).double()(exact) for each in (model, other))
    return bool((a - b).norm() < torch.finfo(torch.float32).eps / 2 * a.norm())


@pytest.mark.exhaustive
def test_99_of_100_changes_are_found_and_95_at_the_right_layer(tmp_path) -> None:
    lost, misplaced, count = [], [], 0
    for name in NETS:
        model, batch = build(name)
        path = tmp_path / f"{name}.fp"
        GoldenModel(model, batch, "test").write(path)
        for mutant in mutants(name):
            if changes_nothing(model, mutant.model, batch):
                continue  # such as a weight of a channel that is always zero
            found = GoldenModel(mutant.model, batch, "test").compare(path)
            count += 1
            if found.first is None:
                lost.append(mutant.label)
            elif found.first.key != mutant.place:
                misplaced.append((mutant.label, found.first.key, found.first.times))
    assert count >= 100
    assert len(lost) <= count // 100, lost
    assert len(lost) + len(misplaced) <= count // 20, (lost, misplaced)


@pytest.mark.parametrize("name", NETS)
def test_threads_kernels_and_memory_formats_are_no_alarm(changes, name: str) -> None:
    model, batch = build(name)
    changes(model, model, batch)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            assert changes(model, model, batch).same
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            assert changes(model, model, batch).same
    finally:
        torch.set_num_threads(threads)
    if batch.ndim == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
        model.to(memory_format=torch.channels_last)
        assert changes(model, model, batch).same


def rounded_once(model: nn.Module) -> nn.Module:
    """Return a copy whose layers compute in float64 and round their output to float32.

    The bits differ from those of a float32 kernel on every processor.
    """
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.RNNBase):
            layer.forward = partial(_in_float64, copy.deepcopy(layer).double())  # type: ignore[method-assign]
    return model


def _in_float64(exact: nn.Module, x: torch.Tensor) -> Any:
    return tree_map(torch.Tensor.float, exact(x.double()))


@pytest.mark.parametrize("name", NETS)
def test_other_rounding_is_no_alarm(changes, name: str) -> None:
    model, batch = build(name)
    found = changes(model, rounded_once(model), batch)
    assert found.same, found
    assert found.equal < len(found.rows)  # other bits


def test_two_files_are_compared_as_the_models_are(tmp_path) -> None:
    model, batch = build("residual")
    [mutant] = [one for one in mutants("residual") if one.label == "residual: factor of 3"]
    golden, changed = GoldenModel(model, batch, "t"), GoldenModel(mutant.model, batch, "t")
    golden.write(tmp_path / "a.fp")
    found = changed.compare(tmp_path / "a.fp")
    found.b.save(tmp_path / "b.fp")
    from hookscope.stores.fingerprint_file import open_fingerprint

    files = [open_fingerprint(tmp_path / f"{name}.fp") for name in "ab"]
    assert files[1].to_text() == found.b.to_text()
    again = compare_fingerprints(files[0], files[1], ExactDiffOptions())
    assert again.rows == found.rows
    assert again.first.key == "3.relu:2/input.0"
    assert again.first.origin == "3"


def test_dropout_that_is_on_in_both_is_the_same_and_its_rounding_is_not_hidden(changes) -> None:
    model, batch = build("dense")
    model[3].train()
    assert changes(model, model, batch).same
    model[0].weight.data[0, 0] *= 1.01
    assert changes(model, model, batch).first.key == "0/output"
