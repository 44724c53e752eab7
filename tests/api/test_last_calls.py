"""Which call of a layer is the last: found by a run without values, or not known before the run."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hookscope
from tests.api.own_models import LARGE, X, assert_same_as_by_hand, by_hand, write

# Models whose further calls of ``a`` the trial cannot know, each with the number of calls.
UNKNOWN = {
    "it depends on values": "for _ in range(2 if x.sum() < 1e9 else 1): x = self.a(x)",
    "the error of reading a value is caught": """
try:
    many = bool(x.sum() < 1e9)
except Exception:
    many = False
for _ in range(2 if many else 1): x = self.a(x)""",
    "an array is caught": """
try:
    many = bool(np.asarray(x).sum() < 1e9)
except Exception:
    many = False
for _ in range(2 if many else 1): x = self.a(x)""",
    "it asks for the meta device": "for _ in range(1 if x.is_meta else 2): x = self.a(x)",
    "it asks for the device": "for _ in range(2 if x.device.type == 'cpu' else 1): x = self.a(x)",
    "it asks for that of a parameter": """
for _ in range(2 if next(self.parameters()).device.type == "cpu" else 1): x = self.a(x)""",
    "it asks whether it is on a CPU": "for _ in range(2 if x.is_cpu else 1): x = self.a(x)",
    "it asks for the memory": "for _ in range(2 if x.data_ptr() else 1): x = self.a(x)",
    "it asks for a GPU": """
for _ in range(2 if x.get_device() == torch.zeros(()).get_device() else 1): x = self.a(x)""",
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
    shot = hookscope.capture(unknown(why, tmp_path), layers="a", input=LARGE, stop=None)
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
    shot = hookscope.capture(spec, layers="part", input=LARGE, stop=None)
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
    shot = hookscope.capture(spec, layers=["a", "drop"], input=LARGE, train=train, stop=None)
    assert ("a:2/output" in shot) == train
    assert shot.coverage.stopped_after == ("a" if train else "drop")
    assert_same_as_by_hand(shot, spec, LARGE, train=train)


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
    shot = hookscope.capture(spec, layers="a", input=LARGE, train=train, stop=None)
    assert_same_as_by_hand(shot, spec, LARGE, train=train)
    assert "a:2/output" in shot


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
    with pytest.warns((FutureWarning, DeprecationWarning), match="is deprecated"):
        torch.jit.script(net).save(tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    shot = hookscope.capture(tmp_path / "net.pt", layers="a", input=LARGE, stop=None)
    assert list(shot) == ["a/output", "a:2/output"]
    assert shot.coverage.stopped_after == ""


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
@settings(max_examples=25)
def test_no_call_of_any_selection_is_lost(seed: int, chosen: list[str]) -> None:
    net = Repeating(seed).eval()
    names = [name for name in chosen if dict(net.named_modules()).get(name) is not None]
    shot = hookscope.capture(net, layers=names, input=X, stop=True)
    expected = by_hand(net, X, {name for name, _ in net.named_modules()} & set(names))
    assert shot.keys() == expected.keys()
    assert all(torch.equal(shot[key], tensor) for key, tensor in expected.items())
    assert shot.coverage.calls_complete
