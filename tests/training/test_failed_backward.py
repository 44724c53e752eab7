"""A backward pass of a script that fails: the line is named, the change was tried, nothing is left.

The oracle of the lines is the script, which marks the line that is to be named; that of the rest is
the same script under Python.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from hookscope.training import sealed_process
from hookscope.training.sealed_process import NoSealedProcess, check_can_seal, run_sealed
from tests.training.failing_steps import CORRECT, HEAD, SCRIPTS, WITHOUT_CHANGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks with torch imported"),
]


def _can_seal() -> bool:
    try:
        check_can_seal()
    except NoSealedProcess:
        return False
    return True


needs_landlock = pytest.mark.skipif(not _can_seal(), reason="the kernel has no Landlock")


def marked_line(script: str) -> int:
    """The number of the line with the mark."""
    lines = script.splitlines()
    return 1 + next(n for n, line in enumerate(lines) if line.endswith("# here"))


def code_in(page: str) -> str:
    """The first block of Python in a page; ``py`` marks one that is meant to fail."""
    return re.split(r"^```(?:py|python)?\n", page, flags=re.MULTILINE)[1]


@needs_landlock
@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_line_is_named_and_a_change_was_tried(watched, name: str) -> None:
    ended = watched(SCRIPTS[name])
    assert ended.status == 1
    story = "\n".join(ended.messages)
    assert f"script.py:{marked_line(SCRIPTS[name])}" in story, ended.stderr
    assert ("Tried: " in story) == (name not in WITHOUT_CHANGE), story
    assert "could not" not in story


@needs_landlock
def test_a_state_that_begins_as_none_is_kept_so(watched) -> None:
    tried = "Tried: with `self.hidden = None if self.hidden is None else self.hidden.detach()`"
    assert any(tried in line for line in watched(SCRIPTS["kept_state"]).messages)


@needs_landlock
def test_the_statement_is_named_where_several_are_in_one_line(watched) -> None:
    story = "\n".join(watched(SCRIPTS["on_one_line"]).messages)
    first, then = "score.backward()", "loss.backward()"
    if sys.version_info < (3, 11):  # whose code has no columns: all of the line is quoted
        first, then = (
            f"{o}.zero_grad(); {x}; {o}.step()" for o, x in (("og", first), ("od", then))
        )
    assert f"`{then}` (script.py:10)" in story
    assert f"`{first}` in script.py:8" in story


@needs_landlock
def test_no_clone_is_suggested_of_a_weight_that_is_changed(watched) -> None:
    ended = watched(
        HEAD
        + dedent("""\
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc, self.keys = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))
                def forward(self, x):
                    scores = self.fc(x) @ self.keys.t()
                    with torch.no_grad():
                        self.keys[0] = 0
                    return scores
            net = Net()
            for step in range(2):
                net(torch.randn(5, 4)).sum().backward()
            """)
    )
    assert "Suggestion: change the weight after the backward pass" in "\n".join(ended.messages)


@needs_landlock
def test_frozen_parameters_are_named(watched) -> None:
    ended = watched(
        HEAD
        + dedent("""\
            net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).requires_grad_(False)
            for step in range(2):
                net(torch.ones(2, 3)).sum().backward()
            """)
    )
    [said] = [line for line in ended.messages if "cannot get a gradient" in line]
    assert "4 parameters" in said and "net.0.weight, net.0.bias, net.2.weight and others" in said


@needs_landlock
def test_gradients_that_another_file_disables_are_told_with_its_line(watched, work: Path) -> None:
    (work / "layers.py").write_text(
        "from torch import nn\nclass Body(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x)\n"
    )
    ended = watched(
        "import torch\nfrom layers import Body\nbody = Body(3, 3)\nfor step in range(2):\n"
        "    with torch.no_grad():\n        out = body(torch.ones(2, 3))\n"
        "    out.sum().backward()\n"
    )
    [said] = [line for line in ended.messages if "with gradients disabled" in line]
    assert "layers.py:4" in said and "by `with torch.no_grad()` in script.py:5." in said


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_script_has_no_story(watched, name: str) -> None:
    ended = watched(CORRECT[name])
    assert ended.status == 0, ended.stderr
    assert [line for line in ended.messages if "recorded 3 steps" not in line] == []


def test_another_error_has_no_story(watched) -> None:
    ended = watched("import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    assert ended.status == 1
    assert not any("backward" in line for line in ended.messages[:-1])


@needs_landlock
def test_the_program_prints_and_writes_what_it_does_under_python(both_ways, work: Path) -> None:
    step = "    loss = net(torch.randn(5, 4)).square().sum()\n"
    noisy = "    print('step', step)\n    open('log.txt', 'a').write('x')\n"
    noisy += "    torch.save(net.state_dict(), 'best.pt')\n"
    noisy += "    import os; os.makedirs('new', exist_ok=True)\n"
    ended = both_ways(SCRIPTS["fpn"].replace(step, step + noisy))
    assert ended.stdout == "step 0\n"
    assert (work / "log.txt").read_text() == "xx"  # one of each way
    assert "Tried: with `x = x + y` there" in ended.stderr


def test_nothing_is_installed_while_all_is_well(watched) -> None:
    ended = watched(
        HEAD
        + dedent("""\
            import sys
            net = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(2):
                loss = net(torch.ones(2, 3)).exp().sum()
                print(torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack())
                print(torch._C._autograd._top_saved_tensors_default_hooks(True))
                loss.backward()
                optimizer.step()
            print([name for name in sys.modules if "backward_" in name and "hookscope" in name])
            """)
    )
    assert ended.status == 0, ended.stderr
    assert ended.stdout == "0 0\nNone\n" * 2 + "[]\n"


def test_without_a_sealed_process_it_says_so(watched) -> None:
    why = "raise sealed_process.NoSealedProcess('this system has none')"
    ended = watched(
        "from hookscope.training import sealed_process\n"
        f"def refuse():\n    {why}\n"
        "sealed_process.check_can_seal = refuse\n" + SCRIPTS["fpn"]
    )
    assert ended.status == 1
    assert any("is not explained: this system has none." in line for line in ended.messages)


@needs_landlock
@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (1, "Not all changes were tried, because time ran out."),
        (0, "is not explained: its step takes too long to run again."),
    ],
)
def test_it_is_said_that_time_ran_out(watched, runs: int, said: str) -> None:
    ended = watched(
        "from itertools import count\nfrom hookscope.training import backward_story as story\n"
        "numbers, run = count(), story.run_sealed\n"
        "def late(function, seconds):\n"
        f"    return run(function, seconds if next(numbers) < {runs} else 0)\n"
        "story.run_sealed = late\n" + SCRIPTS["fpn"]
    )
    assert ended.status == 1
    assert any(said in line for line in ended.messages), ended.stderr
    assert not any("Tried:" in line for line in ended.messages)
    assert any("Suggestion:" in line for line in ended.messages) is bool(runs)


# The sealed process


@needs_landlock
@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: os.open(folder / "new", os.O_CREAT | os.O_WRONLY),
        lambda folder: os.open(folder / "kept", os.O_WRONLY | os.O_TRUNC),
        lambda folder: os.remove(folder / "kept"),
        lambda folder: os.rename(folder / "kept", folder / "other"),
        lambda folder: os.rmdir(folder / "empty"),
        lambda folder: os.symlink("a", folder / "link"),
        lambda folder: torch._C.PyTorchFileWriter(str(folder / "kept")),  # C++: no audit event
        lambda folder: subprocess.run(["true"], check=True),
        lambda folder: os.system("true"),
        lambda folder: os.kill(os.getppid(), 0),
        lambda folder: socket.socket().connect(("127.0.0.1", 9)),
        lambda folder: socket.socket(socket.AF_UNIX).connect(str(folder / "kept")),
    ],
)
def test_a_sealed_process_can_do_no_harm(harm: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "empty").mkdir()

    def attempt() -> str:
        try:
            harm(tmp_path)
        except (OSError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    refused = run_sealed(attempt, 60)
    assert re.search("PermissionError|not allowed|Permission denied|open", refused), refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "kept"]
    assert (tmp_path / "kept").read_text() == "kept"


@needs_landlock
def test_a_sealed_process_reaches_no_open_file_and_no_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    with open(tmp_path / "log", "w") as log:

        def attempt() -> str:
            os.write(write, b"said")
            log.write("said")
            log.flush()
            print("said")
            (open(tmp_path / "new", "w")).write("said")  # noqa: SIM115
            return "ended"

        assert run_sealed(attempt, 60) == "ended"
    os.close(write)
    assert os.read(read, 10) == b""
    os.close(read)
    assert (tmp_path / "log").read_text() == ""
    assert not (tmp_path / "new").exists()


@needs_landlock
def test_a_sealed_process_that_does_not_end_is_given_up() -> None:
    def wait() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError):
        run_sealed(wait, 1)


@needs_landlock
def test_the_fork_adds_no_warning_to_those_of_the_program() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            assert run_sealed(lambda: 1, 60) == 1
    finally:
        ends.set()
        thread.join()
    assert shown == []  # Python warns of threads from 3.12 on


def test_no_landlock_means_no_sealed_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_process, "_landlock_version", lambda: -1)
    with pytest.raises(NoSealedProcess, match="Landlock"):
        run_sealed(lambda: 1, 1)


# The pages


@needs_landlock
@pytest.mark.parametrize(
    "page", ["backward-through-the-graph-a-second-time", "does-not-require-grad"]
)
def test_the_page_shows_what_is_said(watched, page: str, repo: Path) -> None:
    text = (repo / "docs" / "questions" / f"{page}.md").read_text()
    code = code_in(text)
    shown = re.findall(r"^    (hookscope: .+)\n", text, re.MULTILINE)
    assert len(shown) == 3
    said = [line.replace("script.py", "train.py") for line in watched(code).messages]
    assert said[:3] == shown
