"""A backward pass of a script that fails: the line is named, and nothing of it runs again.

The oracle of the lines is the script, which marks the line that is to be named; that of the rest is
the same script under Python.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.training.failing_steps import CORRECT, HEAD, SCRIPTS, indented
from tests.training.forked import FORKS, Ended

pytestmark = FORKS


def marked_line(script: str, mark: str = "# here") -> int:
    """The number of the line with the mark."""
    return 1 + next(n for n, line in enumerate(script.splitlines()) if line.endswith(mark))


def story_of(ended: Ended) -> str:
    """What is said about the failure."""
    lines = [line.removeprefix("hookscope: ") for line in ended.messages]
    return "\n".join(x for x in lines if not x.startswith(("recorded", "stopped the script")))


def code_in(page: str) -> str:
    """The first block of Python in a page; ``py`` marks one that is meant to fail."""
    return re.split(r"^```(?:py|python)?\n", page, flags=re.MULTILINE)[1]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_line_is_named(watched, name: str) -> None:
    ended = watched(SCRIPTS[name])
    assert ended.status == 1
    story = "\n".join(ended.messages)
    assert f"script.py:{marked_line(SCRIPTS[name])}" in story, ended.stderr
    assert "Suggestion: " in story
    assert "Tried" not in story and "could not" not in story


def test_the_statement_is_named_where_several_are_in_one_line(watched) -> None:
    story = "\n".join(watched(SCRIPTS["on_one_line"]).messages)
    first, then = "score.backward()", "loss.backward()"
    if sys.version_info < (3, 11):  # whose code has no columns: all of the line is quoted
        first, then = (
            f"{o}.zero_grad(); {x}; {o}.step()" for o, x in (("og", first), ("od", then))
        )
    assert f"`{then}` (script.py:10)" in story
    assert f"`{first}` in script.py:8" in story
    assert "`fake`" in story


def test_no_clone_is_suggested_of_a_weight_that_is_changed(watched) -> None:
    [said] = [line for line in watched(SCRIPTS["own_weight"]).messages if "Suggestion" in line]
    assert " after " in said and "clone" not in said


def test_frozen_parameters_are_named(watched) -> None:
    ended = watched(
        HEAD
        + dedent("""\
            net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).requires_grad_(False)
            net(torch.ones(2, 3)).sum().backward()
            """)
    )
    [said] = [line for line in ended.messages if "4 parameters" in line]
    assert "net.0.weight, net.0.bias, net.2.weight and others" in said


def test_gradients_that_are_disabled_around_a_layer_of_another_file_are_told(
    watched, work: Path
) -> None:
    (work / "layers.py").write_text("from torch import nn\nclass Body(nn.Sequential): pass\n")
    ended = watched(
        "import torch\nfrom layers import Body\nbody = Body(torch.nn.Linear(3, 3))\n"
        "with torch.no_grad():\n    out = body(torch.ones(2, 3))\nout.sum().backward()\n"
    )
    assert re.search(r"script\.py:5.* by `with torch\.no_grad\(\)` in line 4", story_of(ended))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_script_has_no_story(watched, name: str) -> None:
    ended = watched(CORRECT[name])
    assert (ended.status, story_of(ended)) == (0, ""), ended.stderr


def test_another_error_has_no_story(watched) -> None:
    ended = watched("import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    assert ended.status == 1
    assert not any("backward" in line for line in ended.messages[:-1])


def test_the_program_prints_and_writes_what_it_does_under_python(both_ways, work: Path) -> None:
    step = "    loss = net(torch.randn(5, 4)).square().sum()\n"
    noisy = "    print('step', step)\n    open('log.txt', 'a').write('x')\n"
    noisy += "    torch.save(net.state_dict(), 'best.pt')\n"
    noisy += "    import os; os.makedirs('new', exist_ok=True)\n"
    ended = both_ways(SCRIPTS["fpn"].replace(step, step + noisy))
    assert ended.stdout == "step 0\n"
    assert (work / "log.txt").read_text() == "xx"  # one of each way
    assert "`x = x + y`" in ended.stderr


def test_nothing_is_installed_while_all_is_well(watched) -> None:
    ended = watched(
        HEAD
        + dedent("""\
            import sys
            stories = [name for name in sys.modules if "backward_" in name and "hookscope" in name]
            for name in stories:
                del sys.modules[name]  # the fork has them, and a process has not
            net = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(2):
                loss = net(torch.ones(2, 3)).exp().sum()
                print(torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack())
                print(torch._C._autograd._top_saved_tensors_default_hooks(True))
                loss.backward()
                optimizer.step()
            print([name for name in stories if name in sys.modules])
            """)
    )
    assert ended.status == 0, ended.stderr
    assert ended.stdout == "0 0\nNone\n" * 2 + "[]\n"


# Nothing runs again

COUNTED = """\
import mmap, multiprocessing, os, sys
import numpy as np
from multiprocessing import shared_memory
open("log.txt", "w").close()
files = set(os.listdir())
counter = np.memmap("counter.bin", dtype="i4", mode="w+", shape=(1,))
shared = torch.zeros(1).share_memory_()
number = multiprocessing.Value("i", 0)
lock = multiprocessing.Lock()
calls = []
segments = set(os.listdir("/dev/shm"))
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        calls.append("item")
        return torch.ones(4)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.times = nn.Linear(4, 4), 0
    def forward(self, x):
        self.times += 1
        calls.append("forward")
        return self.fc(x)
def criterion(output):
    calls.append("loss")
    return output.sum()
net = Net()
def step(x):
    counter[0] += 1
    shared.add_(1)
    number.value += 1
    assert lock.acquire(block=False)
    with open("log.txt", "a") as log:
        log.write("x")
    kept = shared_memory.SharedMemory(create=True, size=8)
    kept.close()
    kept.unlink()
{body}
def seen():
    left = sorted(set(os.listdir("/dev/shm")) - segments)
    print(int(counter[0]), float(shared), number.value, net.times, calls, left)
    print(open("log.txt").read(), sorted(set(os.listdir()) - files - {"counter.bin", "runs"}))
def hook(kind, value, trace):
    seen()
    sys.__excepthook__(kind, value, trace)
sys.excepthook = hook
for x in torch.utils.data.DataLoader(Data(), batch_size=2):
    step(x)
"""
BODIES = {
    "in-place": "y = net(x).exp()\nloss = criterion(y)\ny += 1\n(loss + y.sum()).backward()",
    "freed": "loss = criterion(net(x).exp())\nloss.backward()\nloss.backward()",
    "no gradient": "criterion(net(x).detach()).backward()",
    "shape of the forward pass": "criterion(net(x[:, :3])).backward()",
}


@pytest.mark.parametrize(
    ("name", "options"), [*((name, ()) for name in BODIES), ("in-place", ("--capture",))]
)
def test_the_program_and_what_it_shares_are_as_under_python(
    both_ways, name: str, options: tuple[str, ...]
) -> None:
    script = HEAD + COUNTED.replace("{body}", indented(BODIES[name], 4))
    ended = both_ways(script, *options)
    assert ended.status == 1
    assert ended.stdout.startswith("1 1.0 1 1 ['item', 'item', 'forward'"), ended.stderr
    assert "Tried" not in ended.stderr


def test_a_step_that_is_stopped_has_run_once(watched) -> None:
    body = "try:\n    criterion((net(x) * 0).sqrt()).backward()\nfinally:\n    seen()"
    script = COUNTED.replace(
        "def step(x):", "optimizer = torch.optim.SGD(net.parameters())\ndef step(x):"
    )
    ended = watched(HEAD + script.replace("{body}", indented(body, 4)), "--stop-on", "nan")
    assert ended.status == 1 and "sqrt" in ended.messages[1], ended.stderr
    assert ended.stdout.startswith("1 1.0 1 1 ['item', 'item', 'forward', 'loss'] []\nx")


def test_code_of_the_program_is_not_called_to_be_read(both_ways) -> None:
    """Attributes, conversions and comparisons of objects of the program may do anything."""
    script = HEAD + dedent("""\
        class Odd:
            def __getattr__(self, name):
                print("asked for", name)
                raise AttributeError(name)
            def __eq__(self, other):
                print("compared")
                return False
            @property
            def value(self):
                print("read")
        odd = Odd()
        net = nn.Linear(4, 4)
        def step():
            x = net(torch.ones(2, 4)).exp()
            x += len(vars(odd))  # here
            odd
            x.sum().backward()
        step()
    """)
    ended = both_ways(script)
    assert ended.status == 1 and ended.stdout == ""
    assert f"script.py:{marked_line(script)}" in ended.stderr


def test_hooks_on_saved_tensors_are_called_as_under_python(both_ways) -> None:
    script = HEAD + dedent("""\
        from torch.utils.checkpoint import checkpoint
        net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
        net[1].register_forward_hook(lambda *_: print("forward"))
        unpacked = lambda tensor: print("unpacked") or tensor
        def step():
            x = checkpoint(net, torch.ones(2, 4), use_reentrant=False)
            with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpacked):
                loss = x.sum() / torch.tensor(2.0, requires_grad=True)
            kept = x.exp()
            kept += 1  # here
            (loss + kept.sum()).backward()
        step()
    """)
    ended = both_ways(script)
    assert ended.status == 1
    assert f"script.py:{marked_line(script)}" in ended.stderr


def test_the_line_that_anomaly_mode_has_recorded_is_named(watched) -> None:
    script = SCRIPTS["fpn"].replace(HEAD, HEAD + "torch.autograd.set_detect_anomaly(True)\n")
    first = watched(script).messages[0]
    assert f"(script.py:{marked_line(script) - 1})" in first
