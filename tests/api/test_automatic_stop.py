"""``capture`` ends after the last call of the selected layers where nothing else needs the rest."""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hookscope
from hookscope.hooks.capture import Capture

HEAD = """
import random, threading
import numpy as np
import torch, torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint
"""

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


def write(folder: Path, body: str) -> str:
    """Write a model file whose class ``Net`` has that body; return its spec."""
    path = folder / "own.py"
    code = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"{HEAD}\nclass Net(nn.Module):\n{code}", encoding="utf-8")
    return f"{path}:Net"


def by_hand(
    module: nn.Module, value: Tensor, names: set[str], *, train: bool = False
) -> dict[str, Tensor]:
    """The outputs of all calls of some modules, by hooks that clone; the whole model runs."""
    kept: dict[str, Tensor] = {}
    calls: dict[str, int] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            first = output[0] if isinstance(output, tuple) else output
            what = "output.0" if isinstance(output, tuple) else "output"
            kept[f"{name}{f':{calls[name]}' * (calls[name] > 1)}/{what}"] = first.clone()

        return hook

    handles = [m.register_forward_hook(keep(n)) for n, m in module.named_modules() if n in names]
    before = module.training
    module.train(train)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    with torch.no_grad():
        module(value.clone())
    torch.random.set_rng_state(state)
    module.train(before)
    for handle in handles:
        handle.remove()
    return kept


def assert_same_as_by_hand(shot: Capture, spec: str, value: Tensor, *, train: bool = False) -> None:
    names = {layer.module for layer in shot.coverage.executed}
    expected = by_hand(hookscope.load_model(spec).module, value, names, train=train)
    assert shot.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(shot[key], tensor), key


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
    shot = hookscope.capture(spec, layers=layers, input=value, stop=None)
    assert shot.output is None
    assert shot.coverage.not_run[: len(later)] == later
    assert shot.coverage.calls_complete
    assert_same_as_by_hand(shot, spec, value)


TWICE = """
def __init__(self):
    super().__init__()
    self.first, self.act, self.second = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)
    self.head = nn.Linear(4, 2)
def forward(self, x):
    x = self.act(self.first(x))
    return self.head(self.act(self.second(x)))
"""
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("what", ["output", "input"])
def test_a_layer_that_is_called_twice_is_recorded_twice(tmp_path: Path, what: str) -> None:
    shot = hookscope.capture(write(tmp_path, TWICE), layers="act", input=X, what=what, stop=None)
    assert len(shot) == 2
    assert (shot.coverage.stopped_after, shot.coverage.not_run) == ("act", ("head",))
    if what == "output":
        assert_same_as_by_hand(shot, str(tmp_path / "own.py:Net"), X)


def test_modules_that_ran_before_are_not_among_those_that_were_not_run(tmp_path: Path) -> None:
    shot = hookscope.capture(write(tmp_path, TWICE), layers="first", input=X, stop=None)
    assert shot.coverage.not_run == ("act", "second", "head")
    shot = hookscope.capture(write(tmp_path, TWICE), layers="second", input=X, stop=None)
    assert shot.coverage.not_run == ("head",)


# Models whose further calls of ``a`` the trial cannot know, each with the number of calls.
UNKNOWN = {
    "it depends on values": "for _ in range(2 if x.sum() < 1e9 else 1): x = self.a(x)",
    "the error of reading a value is caught": """
try:
    many = bool(x.sum() < 1e9)
except Exception:
    many = False
for _ in range(2 if many else 1): x = self.a(x)""",
    "a read as an array is caught": """
try:
    many = bool(np.asarray(x).sum() < 1e9)
except Exception:
    many = False
for _ in range(2 if many else 1): x = self.a(x)""",
    "it asks for the meta device": "for _ in range(1 if x.is_meta else 2): x = self.a(x)",
    "it draws from torch": "for _ in range(1 + int(torch.rand(()) < 2)): x = self.a(x)",
    "it draws from numpy": "for _ in range(1 + int(np.random.rand() < 2)): x = self.a(x)",
    "it draws from Python": "for _ in range(1 + int(random.random() < 2)): x = self.a(x)",
    "it sets a seed": "torch.manual_seed(5); x = self.a(self.a(x))",
    "it computes with numpy": "x = self.a(self.a(torch.from_numpy(x.numpy() * 2)))",
    "threads call it": """
results = []
thread = threading.Thread(target=lambda: results.append(self.a(x)))
thread.start(); thread.join()
x = self.a(results[0])""",
}


def unknown(why: str, folder: Path) -> str:
    """Write the model of ``UNKNOWN[why]``; return its spec."""
    body = textwrap.indent(UNKNOWN[why].strip("\n"), "    ")
    return write(
        folder,
        f"def __init__(self):\n    super().__init__()\n"
        f"    self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)\n"
        f"def forward(self, x):\n{body}\n    return self.b(x)\n",
    )


@pytest.mark.parametrize("why", UNKNOWN)
def test_a_run_whose_calls_may_depend_on_data_does_not_stop(why: str, tmp_path: Path) -> None:
    shot = hookscope.capture(unknown(why, tmp_path), layers="a", input=X, stop=None)
    assert (shot.coverage.stopped_after, shot.coverage.not_run) == ("", ())
    assert list(shot) == ["a/output", "a:2/output"]
    assert shot.output is not None


@pytest.mark.parametrize("why", ["it depends on values", "it sets a seed"])
def test_a_stop_that_is_asked_for_then_comes_after_the_first_call(why: str, tmp_path: Path) -> None:
    asked = hookscope.capture(unknown(why, tmp_path), layers="a", input=X, stop=True)
    assert list(asked) == ["a/output"]
    assert not asked.coverage.calls_complete
    assert asked.coverage.not_run == ()


def test_a_call_on_a_thread_of_the_model_ends_nothing(tmp_path: Path) -> None:
    asked = hookscope.capture(unknown("threads call it", tmp_path), layers="a", input=X, stop=True)
    assert list(asked) == ["a/output", "a:2/output"]
    assert asked.coverage.stopped_after == ""


def test_a_module_made_in_the_run_is_recorded_too(tmp_path: Path) -> None:
    spec = write(
        tmp_path,
        """
        def __init__(self):
            super().__init__()
            self.part, self.b = Part(), nn.Linear(4, 2)
        def forward(self, x):
            return self.b(self.part(self.part(x)))
        """,
    )
    with (tmp_path / "own.py").open("a") as file:
        file.write(
            "\nclass Part(nn.Module):\n    def forward(self, x):\n"
            "        if not hasattr(self, 'late'):\n            self.late = nn.ReLU()\n"
            "        return self.late(x)\n"
        )
    shot = hookscope.capture(spec, layers="part", input=X, stop=None)
    assert list(shot) == ["part.late/output", "part/output", "part.late:2/output", "part:2/output"]
    assert shot.coverage.stopped_after == ""


TRAINED = """
def __init__(self):
    super().__init__()
    self.a, self.drop, self.norm = nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)
    self.b = nn.Linear(4, 2)
def forward(self, x):
    x = self.norm(self.drop(self.a(x)))
    if self.training:
        x = self.a(x)
    return self.b(x)
"""


@pytest.mark.parametrize("train", [False, True])
def test_a_call_in_train_mode_alone_is_known(tmp_path: Path, train: bool) -> None:
    spec = write(tmp_path, TRAINED)
    shot = hookscope.capture(spec, layers=["a", "drop"], input=X, train=train, stop=None)
    assert ("a:2/output" in shot) == train
    assert shot.coverage.stopped_after == ("a" if train else "drop")
    assert_same_as_by_hand(shot, spec, X, train=train)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_a_checkpointed_module_stops_with_the_same_bits(
    tmp_path: Path, reentrant: bool, train: bool
) -> None:
    spec = write(
        tmp_path,
        f"""
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
        def forward(self, x):
            x = checkpoint(self.a, x, use_reentrant={reentrant}, preserve_rng_state=False)
            return self.b(checkpoint(self.a, x, use_reentrant={reentrant}))
        """,
    )
    shot = hookscope.capture(spec, layers="a", input=X, train=train, stop=None)
    assert_same_as_by_hand(shot, spec, X, train=train)
    assert "a:2/output" in shot


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_scripted_and_an_exported_file_stop_with_the_same_bits(
    tmp_path: Path, suffix: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()).eval()
    path = tmp_path / f"net{suffix}"
    if suffix == ".pt":
        with pytest.warns(FutureWarning, match="is deprecated"):
            torch.jit.script(net).save(path)  # type: ignore[no-untyped-call]
    else:
        torch.export.save(torch.export.export(net, (X,)), path)
    whole = hookscope.capture(path, layers=["0", "1"], input=X)
    shot = hookscope.capture(path, layers=["0", "1"], input=X, stop=None)
    assert shot.coverage.stopped_after == "1"
    assert shot.coverage.not_run == ("2", "3")
    assert list(shot) == list(whole) == ["0/output", "1/output"]
    assert all(torch.equal(shot[key], tensor) for key, tensor in whole.items())
    assert torch.equal(shot["1/output"], net[:2](X))


def test_a_scripted_loop_over_values_does_not_stop(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn, Tensor\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)\n"
        "    def forward(self, x: Tensor) -> Tensor:\n"
        "        if bool(x.sum() < 1e9):\n            x = self.a(x)\n"
        "        return self.b(self.a(x))\n"
    )
    net = hookscope.load_model(f"{tmp_path}/net.py:Net").module
    with pytest.warns(FutureWarning, match="is deprecated"):
        torch.jit.script(net).save(tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    shot = hookscope.capture(tmp_path / "net.pt", layers="a", input=X, stop=None)
    assert list(shot) == ["a/output", "a:2/output"]
    assert shot.coverage.stopped_after == ""


@pytest.mark.parametrize("wrap", ["nn.DataParallel", "torch.compile"])
def test_a_wrapped_model_stops_with_the_same_bits(tmp_path: Path, wrap: str) -> None:
    spec = write(tmp_path, TWICE)
    with (tmp_path / "own.py").open("a") as file:
        file.write(f"\ndef wrapped():\n    return {wrap}(Net())\n")
    shot = hookscope.capture(f"{tmp_path}/own.py:wrapped", layers="*act", input=X, stop=None)
    plain = hookscope.capture(spec, layers="act", input=X)
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
    torch.linalg.cholesky(torch.zeros(2, 2, device=x.device) - 1)
    return self.b(x)
"""


def test_an_error_after_the_last_layer_is_not_reached_and_the_note_says_so(
    run, tmp_path: Path
) -> None:
    spec = write(tmp_path, FAILING)
    words = ["capture", spec, "--layer", "a", "--shape", "1x4"]
    done = run(*words, "--no-output")
    assert done.rc == 0, done.stderr
    assert "Not run, because the run ended after a: b." in done.stdout
    whole = run(*words, "--no-output", "--no-stop")
    assert whole.rc != 0
    assert "cholesky" in whole.stderr


def test_the_text_the_file_and_the_page_say_what_was_not_run(run, tmp_path: Path) -> None:
    words = ["capture", write(tmp_path, TWICE), "--layer", "first", "--shape", "1x4"]
    done = run(*words, "-o", "a.safetensors")
    assert done.rc == 0, done.stderr
    note = "Not run, because the run ended after first: act, second, head."
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
    options = {"layers": "first", "input": X, "stop": None} | more
    shot = hookscope.capture(write(tmp_path, TWICE), **options)
    assert shot.coverage.stopped_after == ""
    assert shot.output is not None


def test_a_model_with_names_of_classes_shows_their_table(run, tmp_path: Path) -> None:
    spec = write(tmp_path, TWICE)
    with (tmp_path / "own.py").open("a") as file:
        file.write('\ncategories = ["cat", "dog"]\n')
    done = run("capture", spec, "--layer", "first", "--shape", "1x4", "--no-output")
    assert "dog" in done.stdout
    assert "Not run" not in done.stdout
    asked = run("capture", spec, "--layer", "first", "--shape", "1x4", "--no-output", "--stop")
    assert "dog" not in asked.stdout
    assert "Not run, because the run ended after first: act, second, head." in asked.stdout


def test_in_python_the_output_is_there_unless_a_stop_is_asked_for(tmp_path: Path) -> None:
    spec = write(tmp_path, TWICE)
    assert hookscope.capture(spec, layers="first", input=X).output is not None
    assert hookscope.capture(spec, layers="first", input=X, stop=None).output is None


def test_there_is_nothing_to_stop_after_the_model_itself(tmp_path: Path) -> None:
    shot = hookscope.capture(write(tmp_path, TWICE), layers=["first", "."], input=X, stop=True)
    assert shot.coverage.stopped_after == ""
    assert torch.equal(shot["."], shot.output)


def test_a_module_is_not_run_an_extra_time_to_find_out(tmp_path: Path) -> None:
    net = hookscope.load_model(write(tmp_path, TWICE)).module
    shot = hookscope.capture(net, layers="first", input=X, stop=None)
    assert shot.output is not None
    shot = hookscope.capture(net, layers="first", input=X, stop=True)
    assert shot.coverage.not_run == ("act", "second", "head")


class Box:
    """An object that a model writes to."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []


class Writing(nn.Module):
    """Keeps what it computed in an argument, and reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, box: Box) -> Tensor:
        box.seen.append(self.a(x))
        out: Tensor = self.b(self.a(box.seen[0]))
        return out


def test_a_trial_does_not_write_to_the_arguments_of_the_run() -> None:
    model = Writing()
    shot = hookscope.capture(model, layers="a", input=(X, Box()), stop=True)
    assert torch.equal(shot["a/output"], model.a(X))
    assert not shot.coverage.calls_complete


class Repeating(nn.Module):
    """Calls its parts in a random order, some of them several times, some within others."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        for name in "abcd":
            self.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)))
        self.add_module("unused", nn.Linear(4, 4))
        self.plan = [draw.choice("abcd") for _ in range(draw.randint(2, 9))]
        self.shared = self.a[1] if draw.random() < 0.5 else None

    def forward(self, x: Tensor) -> Tensor:
        for name in self.plan:
            x = x + self.get_submodule(name)(x)
        return x if self.shared is None else self.shared(x)


NAMES = [f"{name}{part}" for name in "abcd" for part in ("", ".0", ".1")] + ["unused"]


@given(seed=st.integers(0, 10**6), chosen=st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
@settings(max_examples=60)
def test_no_call_of_any_selection_is_lost(seed: int, chosen: list[str]) -> None:
    net = Repeating(seed).eval()
    names = [name for name in chosen if dict(net.named_modules()).get(name) is not None]
    shot = hookscope.capture(net, layers=names, input=X, stop=True)
    expected = by_hand(net, X, {name for name, _ in net.named_modules()} & set(names))
    assert shot.keys() == expected.keys()
    assert all(torch.equal(shot[key], tensor) for key, tensor in expected.items())
    assert shot.coverage.calls_complete
