"""Scripts that end badly, or that are no trainings."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.processes import COMMAND, run_python
from tests.training.forked import FORKS, TRAIN, record, steps_of

pytestmark = FORKS


@pytest.mark.exhaustive
def test_a_pattern_need_not_match_in_each_model_and_one_that_matches_in_none_is_told(
    watched, work: Path
) -> None:
    text = """
    import torch
    from torch import nn
    encoder = nn.Sequential()
    encoder.conv = nn.Linear(4, 4)
    decoder = nn.Sequential()
    decoder.head = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    decoder(encoder(torch.ones(1, 4))).sum().backward()
    optimizer.step()
    """
    patterns = ("haed", "head", "conv", "!nothing*")
    ended = watched(text, *(word for pattern in patterns for word in ("--layer", pattern)))
    assert ended.status == 0
    near, none, _ = ended.messages
    assert "haed" in near and near.endswith("head?") and "!nothing*" in none
    assert {series.module for series in record(work).layers.series} == {"", "conv", "head"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)", 0),
        (
            """
            import torch
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                with torch.no_grad():
                    for weight in model.parameters():
                        weight -= 0.1 * weight.grad
            print(model[0].weight)
            """,
            3,
        ),
        ("import torch\ntorch.optim.SGD([torch.ones(1, requires_grad=True)])", 0),
    ],
    ids=["forward only", "backward only", "optimizer that never steps"],
)
def test_a_script_without_steps_of_an_optimizer(both_ways, work, text: str, steps: int) -> None:
    ended = both_ways(text, "--every", "1")
    run = record(work)
    assert (run.info["status"], run.info["steps"], len(run.steps)) == ("finished", steps, steps)
    if steps:
        assert steps_of(run, "0/weight.grad", "norm") == [0, 1, 2]
        assert (run.curve("0/weight.grad", "norm").values > 0).all()
    else:
        assert "runs/script-1" in ended.messages[0]
        assert "backward()" in run.info["unwatched"][-1]["reason"]


@pytest.mark.parametrize("mode", [[], ["--list"]], ids=["train", "list"])
def test_a_script_without_torch_has_no_folder(
    work: Path, clean_environment, mode: list[str]
) -> None:
    (work / "script.py").write_text("import os\nif not os.fork(): raise SystemExit\nos.wait()")
    line = (*COMMAND, "run", *mode, "script.py")
    done = run_python(*line, cwd=work, env=clean_environment, status=0)
    assert "torch" in done.stderr and done.stderr.count("\n") == 1
    assert not (work / "runs").exists()


@pytest.mark.parametrize(
    ("words", "subject", "status"),
    [
        ([], "script", 2),
        (["missing.py"], "missing.py", 2),
        (["--output", "full", "bad.py"], "full", 2),
        (["bad.py"], "SyntaxError", 1),
    ],
)
def test_what_cannot_be_run_leaves_no_folder(
    work, clean_environment, words: list[str], subject: str, status: int
) -> None:
    (work / "bad.py").write_text("import torch\ndef f(:\n")
    (work / "full").mkdir()
    (work / "full" / "notes.txt").write_text("mine")
    done = run_python(*COMMAND, "run", *words, cwd=work, env=clean_environment, status=status)
    assert subject in done.stderr
    assert sorted(entry.name for entry in work.iterdir()) == ["bad.py", "full", "small_training.py"]


# Each raises inside code that PyTorch calls, or that calls PyTorch.
RAISES = {
    "loop": """
        def fail(step, *_):
            if step == 2: raise ValueError("bad batch")
        train(in_step=fail)
        """,
    "backward": """
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 1
            @staticmethod
            def backward(ctx, gradient): raise ValueError("in backward")
        def fail(step, model, optimizer, loss):
            if step == 2: Bad.apply(loss).backward()
        train(in_step=fail)
        """,
    "optimizer": """
        class Bad(torch.optim.SGD):
            def step(self, closure=None): raise ValueError("in step")
        torch.optim.SGD = Bad
        train()
        """,
    "new optimizer": "torch.optim.SGD([], lr=0.1)",
    "tensor hook": """
        def refuse(gradient): raise ValueError("in a hook")
        train(in_step=lambda step, model, optimizer, loss: loss.register_hook(refuse))
        """,
    **{
        kind: f"""
        def fail(*_):
            try:
                no_scalar()
            except RuntimeError as error:
                raise {raised}
        train(in_step=fail)
        """
        for kind, raised in (
            ("cause", "ValueError('no scalar') from error"),
            ("group", "ExceptionGroup('several', [error, ValueError(1)])"),
        )
    },
    "logged": """
        try:
            no_scalar()
        except RuntimeError:
            traceback.print_exc()
        train(2)
        """,
    "thread": """
        thread = threading.Thread(target=no_scalar, name="t")
        thread.start(); thread.join()
        train(2)
        """,
    "own excepthook": """
        def show(kind, error, trace): print("shown", *traceback.format_tb(trace))
        sys.excepthook = show
        train(in_step=lambda *_: no_scalar())
        """,
}
if sys.version_info < (3, 11):
    del RAISES["group"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", RAISES)
def test_a_traceback_is_that_of_python(both_ways, work: Path, place: str) -> None:
    head = "import sys, threading, torch, traceback\n"
    head += "no_scalar = torch.ones(2, requires_grad=True).backward\n"
    ended = both_ways(f"{TRAIN}{head}{textwrap.dedent(RAISES[place])}", "--every", "1")
    continues = place in ("logged", "thread")
    run = record(work)
    assert (run.info["status"], run.info["exit_status"]) == (
        ("finished", 0) if continues else ("failed", 1)
    )
    assert "hookscope" not in ended.own.stderr + ended.stdout


def test_a_traceback_of_a_forward_pass_has_no_frame_of_ours(watched, work: Path) -> None:
    """It has frames of PyTorch that are there with any hook."""
    ended = watched(
        f"""
        {TRAIN}
        import torch
        class Bad(torch.nn.Sequential):
            def forward(self, x):
                raise ValueError("in forward")
        train(model=Bad(torch.nn.Linear(4, 2)))
        """,
        "--every",
        "1",
    )
    assert ended.own.stderr.endswith("ValueError: in forward\n")
    assert "hookscope" not in ended.own.stderr
    assert record(work).info["status"] == "failed"


FOREVER = f"{TRAIN}train(10**9)"
# The seconds in which a row waits in memory do not depend on the processor.
STOPPED_CLOCK = "import time\nnow = [0]\ntime.monotonic = lambda: now[-1]\n"


def wait_for_steps(work: Path) -> None:
    """Wait until rows of both tables are on the disk."""
    folder = work / "runs" / "script-1"
    while not (list(folder.glob("steps-*")) and list(folder.glob("layers-*"))):
        time.sleep(0.01)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["kill", "Ctrl-C", "terminate"]
)
@pytest.mark.parametrize("delay", [0, 0.037, 0.21])
def test_a_run_that_a_signal_ends_can_be_read(
    watched, work: Path, number: int, delay: float
) -> None:
    def kill(pid: int) -> None:
        wait_for_steps(work)
        time.sleep(delay)
        os.kill(pid, number)

    ended = watched(FOREVER, "--every", "1", while_running=kill)
    assert ended.status == -number
    left = record(work)
    assert left.info["steps"] == len(left.steps)
    losses = left.curve("loss", "value")
    assert losses.steps.tolist() == list(range(len(losses.steps)))
    printed = [float(line.split()[1]) for line in ended.stdout.splitlines()]
    count = min(len(printed), len(losses.values))  # a step may end before its line is printed
    assert count >= len(losses.values) - 1
    assert losses.values[:count].tolist() == pytest.approx(printed[:count])
    assert len(left.layers) > 0
    if number != signal.SIGINT:
        assert (ended.stderr, left.info["status"]) == ("", "running")
        return
    assert ended.own.stderr.startswith("Traceback (most recent call last):\n  File")
    assert ended.own.stderr.endswith("KeyboardInterrupt\n")
    assert "hookscope" not in ended.own.stderr
    assert (left.info["status"], left.info["exit_status"]) == ("interrupted", None)
    assert len(left.steps) == len(left.layers) >= len(printed)
    assert f" {len(left.steps):,} steps" in ended.messages[-1]


def test_a_script_that_catches_ctrl_c_goes_on(watched, work: Path) -> None:
    def interrupt(pid: int) -> None:
        wait_for_steps(work)
        os.kill(pid, signal.SIGINT)

    ended = watched(
        f"{TRAIN}\ntry:\n    train(10**9)\nexcept KeyboardInterrupt:\n    train(3)",
        "--every",
        "1",
        while_running=interrupt,
    )
    assert ended.status == 0
    run_ = record(work)
    assert (run_.info["status"], run_.info["incomplete"]) == ("finished", "")
    # All but the last line, a checksum, are of a step.
    assert len(ended.own.stdout.splitlines()) - 1 <= len(run_.steps) == run_.info["steps"]


def test_a_hard_exit_keeps_what_was_written(both_ways, work: Path) -> None:
    text = f"""
    {TRAIN}
    import os
    def leave(step, *_):
        if step == 3: now.append(float('inf'))  # rows have waited long enough
        if step == 5: os._exit(7)
    train(in_step=leave)
    """
    both_ways(STOPPED_CLOCK + textwrap.dedent(text), "--every", "1")
    left = record(work)
    assert left.info["status"] == "running"
    assert len(left.steps) == 4  # what was in memory when the fourth row came


def test_a_run_whose_watching_failed_says_how_the_script_ended(both_ways, work: Path) -> None:
    both_ways(
        """
        import torch
        class Odd(dict):
            def values(self):
                raise KeyError("planted")
        class Net(torch.nn.Linear):
            def forward(self, x):
                return Odd(y=super().forward(x))
        net = Net(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            net(torch.ones(1, 2))["y"].sum().backward()
            optimizer.step()
        """
    )
    info = record(work).info
    assert (info["status"], info["exit_status"]) == ("finished", 0)
    assert "planted" in info["incomplete"]


@pytest.mark.exhaustive
def test_on_a_full_disk_the_training_goes_on(both_ways, work: Path) -> None:
    # Slow steps fill a small file each second; the fast ones after them need a larger one.
    text = f"{TRAIN}import time\nwaits = iter([0.2] * 12)\n"
    text += "train(250, lambda *_: time.sleep(next(waits, 0)))"
    ended = both_ways(text, "--every", "1", largest_file=8_000)
    [warning, last] = ended.messages
    left = record(work)
    assert "File too large" in left.info["incomplete"] and left.info["incomplete"][:-1] in warning
    assert left.info["status"] == "finished"
    assert 0 < len(left.steps) < 250
    assert f"{len(left.steps)} of 250 steps, layers at {len(left.layers)};" in last


def test_layers_that_could_not_be_written_make_a_record_incomplete(both_ways, work: Path) -> None:
    """The table of steps is written first, and has all of its rows."""
    text = f"{STOPPED_CLOCK}{TRAIN}train(30)"
    ended = both_ways(text, "--every", "1", largest_file=6_000)
    left = record(work)
    assert left.info["incomplete"]
    assert (len(left.steps), len(left.layers)) == (30, 0)
    assert "30 of 30 steps, layers at 0;" in ended.messages[-1]


def test_a_folder_that_cannot_be_made_is_a_sentence(watched, work: Path) -> None:
    (work / "runs").symlink_to("missing/runs")  # a file is refused before the script starts
    [line] = watched(f"{TRAIN}train(2)").messages
    assert "File exists" in line and "--output" in line


@pytest.mark.exhaustive
def test_a_folder_that_is_removed_in_the_middle(both_ways, work: Path) -> None:
    ended = both_ways(
        f"""
        {TRAIN}
        import shutil, time
        def remove(step, *_):
            if step == 4: shutil.rmtree("runs", ignore_errors=True)
            time.sleep(0.2)
        train(in_step=remove)
        """
    )
    assert [line for line in ended.messages if "incomplete:" in line] == ended.messages[:1]
    assert not (work / "runs").exists()


@pytest.mark.exhaustive
def test_memory_is_flat_over_many_steps(watched, work: Path) -> None:
    ended = watched(
        f"""
        {TRAIN}
        import resource
        def grown(step, *_):
            if step in (300, 1999):
                with open("/proc/self/statm") as file:
                    print("pages", int(file.read().split()[1]))
        train(2000, grown)
        """,
        "--every",
        "1",
    )
    early, late = (int(line.split()[1]) for line in ended.stdout.splitlines() if "pages" in line)
    assert (late - early) * os.sysconf("SC_PAGE_SIZE") < 6 * 2**20
    assert len(record(work).layers) == 2000
