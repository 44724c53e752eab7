"""A TorchScript file opens as an ordinary module; what cannot be opened is reported."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import InputError, ModelError, RequestError
from hookscope.sources.meta import meta_copy
from tests.archives import rezip
from tests.refusals import refused
from tests.sources.torchscript.examples import program_of, quietly


class Net(nn.Module):
    """Two layers that share their weight, a module with two names, a second method."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.alias = self.first
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.drop(self.second(self.alias(self.first(x)))) * scale + 1.0

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return self.first(x)


def scripted(module: nn.Module, file: Path, **more: object) -> Path:
    with quietly():
        torch.jit.save(torch.jit.script(module), str(file), **more)
    return file


def traced(module: nn.Module, inputs: object, file: Path) -> Path:
    with quietly():
        torch.jit.trace(module, inputs, check_trace=False).save(str(file))
    return file


@pytest.fixture
def net(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return scripted(Net(), tmp_path / "net.pt")


def test_an_opened_file_is_an_ordinary_module(net: Path) -> None:
    module = hookscope.load_model(net).module
    assert not isinstance(module, torch.jit.ScriptModule)
    assert not module.training
    x = torch.ones(1, 4)
    assert torch.equal(module(x=x, scale=2.0), module(x, 2.0))
    assert not torch.equal(module(x), module(x, 2.0))


def test_parameters_that_were_shared_are_shared(net: Path) -> None:
    """TorchScript makes two modules of one with two names; their parameters stay the same ones."""
    module = hookscope.load_model(net).module
    first, second, alias = map(module.get_submodule, ("first", "second", "alias"))
    assert first.weight is second.weight is alias.weight
    assert first.bias is alias.bias is not second.bias
    assert sum(p.numel() for p in module.parameters()) == 16 + 4 + 4


def test_another_method_runs_in_place_of_forward(net: Path) -> None:
    shot = hookscope.capture(net, method="encode", shape=(1, 4))
    assert list(shot) == ["first/output", "./output"]
    with refused(ModelError, "'encod'", hint="encode"):
        hookscope.load_model(net, method="encod")


def test_copies_run_by_themselves(net: Path) -> None:
    module = hookscope.load_model(net).module
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.get_submodule("first").weight.zero_()
    x = torch.ones(1, 4)
    assert not torch.equal(module(x), twin(x))
    assert torch.equal(module(x), hookscope.load_model(net).module(x))
    assert meta_copy(module)(x.to("meta")).device.type == "meta"
    assert twin.double()(x.double()).dtype is torch.float64


class MakesZeros(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(x.shape[-1]) + torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_files_beside_the_model_do_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = scripted(Net(), tmp_path / "net.pt", _extra_files={"labels.txt": b"a b"})
    with caplog.at_level("INFO", logger="hookscope"):
        hookscope.load_model(file)
    assert any("labels.txt" in message for message in caplog.messages)


def test_weights_of_a_file_take_the_place_of_its_own(net: Path, tmp_path: Path) -> None:
    state = hookscope.load_model(net).module.state_dict()
    # What shares memory cannot be saved twice.
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    save_file(zeros, tmp_path / "zeros.safetensors")
    module = hookscope.load_model(net, weights=tmp_path / "zeros.safetensors").module
    assert torch.equal(module(torch.ones(1, 4)), torch.ones(1, 4))


@pytest.mark.parametrize(
    ("given", "subject"),
    [({"model_args": {"width": 3}}, "model_args"), ({"weights": "best"}, "best")],
)
def test_a_file_is_built_already(net: Path, given: dict[str, Any], subject: str) -> None:
    with pytest.raises(RequestError, match=subject):
        hookscope.load_model(net, **given)


def test_a_damaged_file_is_told(net: Path, tmp_path: Path) -> None:
    def halved(name: str, data: bytes) -> bytes:
        return data[: len(data) // 2] if name.endswith(".py") else data

    (tmp_path / "cut.pt").write_bytes(net.read_bytes()[:-300])
    for file in (rezip(net, tmp_path / "damaged.pt", halved), tmp_path / "cut.pt"):
        with pytest.raises(ModelError, match=file.name):
            hookscope.load_model(file)


def test_an_operator_of_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = rezip(
        scripted(Halves(), tmp_path / "net.pt"),
        tmp_path / "foreign.pt",
        lambda name, data: data.replace(b"torch.div(x, 2)", b"ops.strange.twice(x)"),
    )
    with refused(ModelError, "strange::twice", hint="library"):
        hookscope.load_model(file)


def test_what_optimize_for_inference_leaves_behind_is_told(tmp_path: Path) -> None:
    file = tmp_path / "fast.pt"
    with quietly():
        made = torch.jit.script(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval())
        torch.jit.optimize_for_inference(made).save(str(file))
    with pytest.raises(ModelError, match="optimize_for_inference"):
        hookscope.load_model(file)


class SavesWhenOpened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.ones(2)
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return self.shift, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]) -> None:
        torch.save(state[0], "stolen.pt")
        self.shift = state[0]
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


@pytest.mark.parametrize("call", ["torch.save", 'getattr(torch, "s\\141ve")'])
def test_a_file_that_would_write_another_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = rezip(
        scripted(SavesWhenOpened(), tmp_path / "net.pt"),
        tmp_path / "crafted.pt",
        lambda name, data: data.replace(b"torch.save", call.encode()),
    )
    with pytest.raises(ModelError, match="__setstate__"):
        hookscope.load_model(path)
    assert not Path("stolen.pt").exists()
    with quietly():
        torch.jit.load(path)
    assert Path("stolen.pt").exists()  # PyTorch itself runs it


class Same(nn.Module):
    def forward(self, x: Tensor, count: int) -> Tensor:
        return x * count


def test_inputs_that_cannot_be_guessed_are_listed(tmp_path: Path) -> None:
    file = scripted(Same(), tmp_path / "two.pt")
    with pytest.raises(InputError, match="x: Tensor, count: int"):
        hookscope.capture(file)
    shot = hookscope.capture(file, input=(torch.ones(2), 3))
    assert torch.equal(shot["./output"], torch.full((2,), 3.0))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(7, 2)), (1, 7)),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 26 * 26, 2)),
            (1, 3, 28, 28),
        ),
        (nn.Sequential(nn.Conv1d(2, 4, 3)), (1, 2, 1024)),
        (nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)), (1, 8)),
    ],
    ids=["linear", "images of one size", "sound", "words"],
)
def test_an_input_is_guessed_that_the_model_can_run_on(
    model: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    loaded = hookscope.load_model(scripted(model, tmp_path / "net.pt"))
    assert tuple(loaded.example_input.shape) == shape
    loaded.module(loaded.example_input)


def test_a_traced_model_gets_the_shapes_it_was_traced_with(tmp_path: Path) -> None:
    file = traced(nn.Bilinear(3, 2, 1), (torch.ones(5, 3), torch.ones(5, 2)), tmp_path / "net.pt")
    first, second = hookscope.load_model(file).example_input
    assert (first.shape, second.shape) == ((5, 3), (5, 2))


def as_from_a_gpu(name: str, data: bytes) -> bytes:
    """What a file that was saved on a GPU has in place of ``cpu``."""
    if name.endswith(".pkl"):
        return data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    return data.replace(b'torch.device("cpu")', b'torch.device("cuda:0")')


def unchanged(name: str, data: bytes) -> bytes:
    return data


@pytest.mark.parametrize(("change", "there"), [(as_from_a_gpu, True), (unchanged, False)])
def test_a_device_in_the_graph_is_where_the_model_is(
    change: Callable[[str, bytes], bytes], there: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), MakesZeros())
    file = traced(model, torch.ones(1, 4), tmp_path / "net.pt")
    written = rezip(file, tmp_path / "written.pt", change)
    assert (b"cuda:0" in written.read_bytes()) == there
    module = hookscope.load_model(written).module
    assert torch.equal(module(torch.ones(1, 4)), model(torch.ones(1, 4)))
    assert meta_copy(module)(torch.ones(1, 4, device="meta")).device.type == "meta"


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_file_of_an_older_release_means_what_it_meant_then(tmp_path: Path) -> None:
    """Before version 4 of the format, a division of integers rounded down."""
    file = scripted(Halves(), tmp_path / "net.pt")
    old = rezip(
        file,
        tmp_path / "old.pt",
        lambda name, data: b"3\n" if name.endswith("/version") else data,
    )
    numbers = torch.tensor([1, 5, 7])
    with quietly():
        expected = torch.jit.load(old)(numbers)
    found = hookscope.load_model(old).module(numbers)
    assert torch.equal(found, expected)
    assert not torch.equal(found, hookscope.load_model(file).module(numbers))


class Twice(nn.Module):
    """Traced, the two calls of one module are two methods of it."""

    def __init__(self) -> None:
        super().__init__()
        self.same = Same()

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.same(x, 2), 3) + 1


def test_threads_do_not_take_each_others_methods(tmp_path: Path) -> None:
    module = hookscope.load_model(traced(Twice(), torch.ones(2), tmp_path / "net.pt")).module
    wrong = []

    def work() -> None:
        wrong.extend(1 for _ in range(200) if module(torch.ones(2)).tolist() != [7.0, 7.0])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


class Names(nn.Module):
    """Attributes and a method with names that modules, or hookscope, have for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.type = "abc"
        self.signatures = 3
        self._place = 2
        self.frozen = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.half_of(self.frozen(x)) * self.signatures * self._place + len(self.type)

    @torch.jit.export
    def half_of(self, x: Tensor) -> Tensor:
        return x / 2


def test_names_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    net = Names()
    module = hookscope.load_model(scripted(net, tmp_path / "net.pt")).module
    assert torch.equal(module(torch.ones(2)), net(torch.ones(2)))
    assert [name for name, _ in module.named_modules()] == ["", "frozen"]


def test_deeply_nested_branches_are_opened(tmp_path: Path) -> None:
    lines = [
        "import torch",
        "class Program(torch.nn.Module):",
        "    def forward(self, n: int) -> int:",
        *(
            f"        {'el' if n else ''}if n == {n}:\n            return {n * 7}"
            for n in range(200)
        ),
        "        return -1",
    ]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)  # which the compiler needs as well
    try:
        file = scripted(program_of("\n".join(lines), tmp_path)(), tmp_path / "net.pt")
    finally:
        sys.setrecursionlimit(before)
    module = hookscope.load_model(file).module
    assert [module(n) for n in (0, 100, 199, 200)] == [0, 700, 1393, -1]


def test_the_seed_draws_the_noise_of_a_guessed_shape(tmp_path: Path) -> None:
    file = scripted(nn.Sequential(nn.Linear(4, 2)), tmp_path / "net.pt")
    shots = [hookscope.capture(file, what="input", seed=seed) for seed in (1, 2)]
    typed = hookscope.capture(file, what="input", seed=2, shape=(1, 4))
    assert not torch.equal(shots[0]["./input.0"], shots[1]["./input.0"])
    assert torch.equal(shots[1]["./input.0"], typed["./input.0"])
    assert shots[0].metadata["inputs"][0]["spec"] == "noise"
