"""``capture`` ends after the last call of the selected layers: by itself, or with ``--stop``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, RequestError
from tests.api.own_models import LARGE, TWICE, X, assert_same_as_by_hand, write

# The layer that is captured, and what comes after it.
TORCHVISION = {
    "resnet18": ("layer1.*", ("layer2", "layer3", "layer4", "avgpool", "fc")),
    "googlenet": ("inception3a", ("inception3b",)),
    "mobilenet_v3_small": ("features.2.*", ("features.3",)),
    "densenet121": ("features.denseblock1", ("features.transition1",)),
    "squeezenet1_1": ("features.3.*", ("features.4",)),
    "vit": ("encoder.layers.encoder_layer_1.*", ("encoder.layers.encoder_layer_2",)),
}
BUILD = {
    "googlenet": "googlenet(weights=None, aux_logits=False, init_weights=False)",
    "vit": "VisionTransformer(image_size=32, patch_size=8, num_layers=4, num_heads=4,"
    " hidden_dim=32, mlp_dim=64)",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TORCHVISION)
def test_a_model_of_torchvision_in_ones_own_file_stops_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    build = BUILD.get(name, f"{name}(weights=None)")
    (tmp_path / "own.py").write_text(
        f"import torchvision\n\ndef net():\n"
        f"    return torchvision.models.{build.replace('Vision', 'vision_transformer.Vision')}\n"
    )
    layers, later = TORCHVISION[name]
    spec = f"{tmp_path}/own.py:net"
    value = torch.randn(2, 3, 32, 32)
    shot = hookscope.capture(spec, layers=layers, input=value, stop=True)
    assert shot.output is None
    assert shot.coverage.not_run[: len(later)] == later
    assert shot.coverage.calls_complete
    assert_same_as_by_hand(shot, spec, value)


@pytest.mark.parametrize("what", ["output", "input"])
def test_a_layer_that_is_called_twice_is_recorded_twice(tmp_path: Path, what: str) -> None:
    spec = write(tmp_path, TWICE)
    shot = hookscope.capture(spec, layers="act", input=LARGE, what=what, stop=None)
    assert len(shot) == 2
    assert (shot.coverage.stopped_after, shot.coverage.not_run) == ("act", ("head",))
    if what == "output":
        assert_same_as_by_hand(shot, spec, LARGE)


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_scripted_and_an_exported_file_stop_with_the_same_bits(
    tmp_path: Path, suffix: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()).eval()
    path = tmp_path / f"net{suffix}"
    if suffix == ".pt":
        with pytest.warns((FutureWarning, DeprecationWarning), match="is deprecated"):
            torch.jit.script(net).save(path)  # type: ignore[no-untyped-call]
    else:
        torch.export.save(torch.export.export(net, (LARGE,)), path)
    whole = hookscope.capture(path, layers=["0", "1"], input=LARGE)
    shot = hookscope.capture(path, layers=["0", "1"], input=LARGE, stop=None)
    assert shot.coverage.stopped_after == "1"
    assert shot.coverage.not_run == ("2", "3")
    assert list(shot) == list(whole) == ["0/output", "1/output"]
    assert all(torch.equal(shot[key], tensor) for key, tensor in whole.items())
    assert torch.equal(shot["1/output"], net[:2](LARGE))


@pytest.mark.parametrize(
    "wrap", ["nn.DataParallel", pytest.param("torch.compile", marks=pytest.mark.exhaustive)]
)
def test_a_wrapped_model_stops_with_the_same_bits(tmp_path: Path, wrap: str) -> None:
    spec = write(tmp_path, TWICE)
    with (tmp_path / "own.py").open("a") as file:
        file.write(f"\ndef wrapped():\n    return {wrap}(Net())\n")
    shot = hookscope.capture(f"{tmp_path}/own.py:wrapped", layers="*act", input=LARGE, stop=None)
    plain = hookscope.capture(spec, layers="act", input=LARGE)
    assert shot.coverage.stopped_after.endswith("act")
    assert [torch.equal(a, b) for a, b in zip(shot.values(), plain.values(), strict=True)] == [
        True,
        True,
    ]


FAILING = """
def __init__(self):
    super().__init__()
    self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
def forward(self, x):
    x = self.a(x)
    torch.linalg.cholesky(x.new_zeros(2, 2) - 1)
    return self.b(x)
"""


def test_an_error_after_the_last_layer_is_not_reached_and_the_note_says_so(
    run, tmp_path: Path
) -> None:
    spec = write(tmp_path, FAILING)
    words = ["capture", spec, "--layer", "a", "--shape", "1048576x4"]
    done = run(*words, "--no-output")
    assert done.rc == 0, done.stderr
    assert "after a: b." in done.stdout
    whole = run(*words, "--no-output", "--no-stop")
    assert whole.rc != 0
    assert "cholesky" in whole.stderr


def test_the_text_the_file_and_the_page_say_what_was_not_run(run, tmp_path: Path) -> None:
    words = ["capture", write(tmp_path, TWICE), "--layer", "first", "--shape", "1048576x4"]
    done = run(*words, "-o", "a.safetensors")
    assert done.rc == 0, done.stderr
    note = "after first: act, second, head."
    assert note in done.stdout
    assert note in run("show", "a.safetensors").stdout
    document = json.loads(run(*words, "--no-output", "--json").stdout)
    assert document["coverage"]["stopped_after"] == "first"
    assert document["coverage"]["not_run"] == ["act", "second", "head"]
    assert document["coverage"]["calls_complete"] is True
    shot = hookscope.load(tmp_path / "work" / "a.safetensors")
    assert shot.coverage.not_run == ("act", "second", "head")
    assert "stop" not in shot.metadata["options"]
    run("report", "a.safetensors", "-o", "page.html")
    assert note in (tmp_path / "work" / "page.html").read_text(encoding="utf-8")
    whole = json.loads(run(*words, "--no-output", "--json", "--no-stop").stdout)
    assert whole["coverage"].keys() == {"matched", "executed", "not_executed"}


@pytest.mark.parametrize(
    "more",
    [
        {"verify": True},
        {"ops": True},
        {"attention": True},
        {"edits": "first=scale:2"},
        {"hooks": lambda module, inputs, output: None},
        {"layers": ["first", "."]},
        {"layers": ["first", "head"]},  # nothing is left to run after it
        {"stop": False},
    ],
)
def test_what_needs_the_output_runs_the_whole_model(tmp_path: Path, more: dict[str, Any]) -> None:
    options = {"layers": "first", "input": LARGE, "stop": None} | more
    shot = hookscope.capture(write(tmp_path, TWICE), **options)
    assert shot.coverage.stopped_after == ""
    assert shot.output is not None


def test_a_model_with_names_of_classes_shows_their_table(run, tmp_path: Path) -> None:
    large = TWICE.replace(
        "def forward", "    self.room = nn.Buffer(torch.zeros(1 << 26))\ndef forward"
    )
    words = ["capture", write(tmp_path, large), "--layer", "first", "--shape", "1x4", "--no-output"]
    assert "Not run, because" in run(*words).stdout
    with (tmp_path / "own.py").open("a") as file:
        file.write('\ncategories = ["cat", "dog"]\n')
    done = run(*words)
    assert "dog" in done.stdout
    assert "Not run" not in done.stdout
    asked = run(*words, "--stop")
    assert "dog" not in asked.stdout
    assert "after first: act, second, head." in asked.stdout


def test_a_small_model_on_a_small_input_runs_whole(tmp_path: Path) -> None:
    spec = write(tmp_path, TWICE)
    shot = hookscope.capture(spec, layers="first", input=X, stop=None)
    assert (shot.coverage.stopped_after, shot.coverage.not_run) == ("", ())
    assert shot.output is not None
    # A request, or a limit, is worth the pass.
    assert hookscope.capture(spec, layers="first", input=X, stop=True).coverage.not_run
    limited = hookscope.capture(spec, layers="first", input=X, stop=None, max_bytes=1000)
    assert limited.coverage.not_run == ("act", "second", "head")
    with pytest.raises(CheckFailed, match="Recording this takes 48 bytes"):
        hookscope.capture(spec, layers="first", input=X, max_bytes=10)


def test_a_module_is_not_run_an_extra_time_to_find_out(tmp_path: Path) -> None:
    net = hookscope.load_model(write(tmp_path, TWICE)).module
    shot = hookscope.capture(net, layers="first", input=X, stop=None)
    assert shot.output is not None
    shot = hookscope.capture(net, layers="first", input=X, stop=True)
    assert shot.coverage.not_run == ("act", "second", "head")


class Step(nn.Module):
    """A layer that notes its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.name, self.calls = name, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.name)
        return self.linear(x).relu_()


class Net(nn.Module):
    """Three layers, of which the first runs twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls: list[str] = []
        for name in ("first", "second", "third"):
            self.add_module(name, Step(name, self.calls))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.first(self.second(self.first(x))))


class Stubborn(Net):
    """A model that goes on after any exception of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            try:
                x = layer(x)
            except Exception:
                self.calls.append("caught")
        return x


@pytest.mark.parametrize("kind", [Net, Stubborn])
def test_what_follows_the_last_selected_layer_is_not_run(kind: type[Net]) -> None:
    net = kind()
    whole = hookscope.capture(net, layers="second*", what=["input", "output"], input=X)
    net.calls.clear()
    shot = hookscope.capture(net, layers="second*", what=["input", "output"], input=X, stop=True)

    assert net.calls == ["first", "second"]
    assert list(shot) == list(whole)
    assert all(torch.equal(shot[key], tensor) for key, tensor in whole.items())
    assert shot.coverage.stopped_after == "second"
    assert shot.output is None
    assert whole.coverage.stopped_after == ""


def test_the_last_call_ends_the_run_and_the_file_says_so(tmp_path: Path) -> None:
    net = Net()
    shot = hookscope.capture(net, layers="first", input=X, stop=True)
    assert net.calls == ["first", "second", "first"]
    assert list(shot) == ["first/output", "first:2/output"]
    assert shot.coverage.not_run == ("third",)
    shot.save(tmp_path / "shot.safetensors")
    assert hookscope.load(tmp_path / "shot.safetensors").coverage == shot.coverage


class Reading(Net):
    """A model that reads values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() < 1e9 else -x)


def test_without_a_known_last_call_the_first_one_ends_the_run(tmp_path: Path) -> None:
    shot = hookscope.capture(Reading(), layers="first", input=X, stop=True)
    assert list(shot) == ["first/output"]
    assert not shot.coverage.calls_complete
    shot.save(tmp_path / "shot.safetensors")
    assert hookscope.load(tmp_path / "shot.safetensors").coverage == shot.coverage


def test_a_layer_that_never_runs_is_not_waited_for() -> None:
    net = Net()
    net.unused = Step("unused", net.calls)
    shot = hookscope.capture(net, layers=["second", "unused"], input=X, stop=True)
    assert net.calls == ["first", "second"]
    assert shot.coverage.stopped_after == "second"
    assert [layer.module for layer in shot.coverage.not_executed] == ["unused"]


def test_a_layer_that_may_run_later_lets_the_model_run_to_its_end() -> None:
    net = Reading()
    net.unused = Step("unused", net.calls)
    shot = hookscope.capture(net, layers=["second", "unused"], input=X, stop=True)
    assert net.calls == ["first", "second", "first", "third"]
    assert shot.coverage.stopped_after == ""
    assert [layer.module for layer in shot.coverage.not_executed] == ["unused"]
    assert shot.output is not None


class Careless(Net):
    """Catches whatever its layer raises."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.first(x)
        except:  # noqa: E722
            x = self.first(x * 0)
        return x


def test_a_model_that_catches_the_stop_is_an_error() -> None:
    with pytest.raises(RequestError, match="first"):
        hookscope.capture(Careless(), layers="first", input=X, stop=True)
