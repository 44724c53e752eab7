"""Scripts with hooks, functions, threads and folders of their own train the same when watched."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.training.forked import FORKS, TRAIN, record, steps_of

pytestmark = FORKS


MODEL = "model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))"
# Each after the imports of ``os``, ``torch`` and ``train``; hooks of all kinds see four steps.
INTERFERES = {
    "hooks of all kinds": f"""
        import importlib
        seen = []
        def note(name): return lambda *_: seen.append(name)
        torch.nn.modules.module.register_module_forward_hook(note("global forward"))
        torch.nn.modules.module.register_module_forward_pre_hook(note("global pre"))
        torch.nn.modules.module.register_module_full_backward_hook(note("global backward"))
        optim = importlib.import_module("torch.optim.optimizer")
        optim.register_optimizer_step_pre_hook(note("global step"))
        optim.register_optimizer_step_post_hook(note("global stepped"))
        {MODEL}
        model[1].register_forward_hook(lambda module, args, output: output * 2)
        model[0].register_full_backward_hook(note("backward"))
        model[2].register_full_backward_pre_hook(note("backward pre"))
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)
        model[0].weight.register_post_accumulate_grad_hook(note("accumulated"))
        def own(step, model, optimizer, loss):
            if step == 0:
                optimizer.register_step_pre_hook(note("step"))
                optimizer.register_step_post_hook(note("stepped"))
        train(4, own, model)
        print(seen)
        """,
    "all hooks removed": """
        def clear(step, model, *_):
            if step == 3:
                for module in model.modules(): module._forward_hooks.clear()
        train(in_step=clear)
        """,
    **{
        f"{owner}.{name} replaced": f"""
        plain = torch.{owner}.{name}
        def replaced(*args, **kwargs):
            print("replaced")
            return plain(*args, **kwargs)
        torch.{owner}.{name} = replaced
        train()
        """
        for owner, name in (("autograd", "backward"), ("optim.SGD", "step"))
    },
    "step that calls that of its base": """
        torch.optim.SGD([torch.ones(1, requires_grad=True)])  # from now on its step has hooks
        class Mine(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        torch.optim.SGD = Mine
        train()
        """,
    "step of an instance replaced": """
        def wrap(step, model, optimizer, loss):
            if step == 2:
                plain = optimizer.step
                optimizer.step = lambda: (print("step"), plain())
        train(in_step=wrap)
        """,
    "trained in a thread": f"""
        import threading
        torch.manual_seed(0)
        {MODEL}
        torch.optim.SGD(model.parameters())
        thread = threading.Thread(target=train, kwargs={{"model": model}})
        thread.start()
        """,
    "DataParallel without a GPU": f"""
        torch.manual_seed(0)
        {MODEL}
        train(model=torch.nn.DataParallel(model))
        """,
    "other folder": """
        import tempfile
        def move(step, *_):
            if step in (0, 3): os.chdir(tempfile.mkdtemp())
        train(in_step=move)
        """,
    "logging": """
        import logging.config, sys
        logging.basicConfig(level=0, stream=sys.stdout)
        logging.config.dictConfig({"version": 1})
        train()
        """,
    "forks in the middle": """
        def fork(step, model, optimizer, loss):
            if step != 3: return
            pid = os.fork()
            if pid: os.waitpid(pid, 0)
            else: print("child", flush=True)
        train(in_step=fork)
        """,
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", INTERFERES)
def test_a_script_that_interferes_trains_the_same_and_is_recorded(
    both_ways, work, how: str
) -> None:
    text = f"import os, torch\n{TRAIN}{textwrap.dedent(INTERFERES[how])}"
    ended = both_ways(text, "--every", "1")
    run = record(work)
    assert (run.info["status"], run.info["incomplete"]) == ("finished", "")
    assert len(ended.messages) == 1
    for key, measure in (("0/output", "rms"), ("0/weight.grad", "norm")):
        steps = steps_of(run, key, measure)
        assert steps == list(range(len(run.steps))), key
    assert len(run.steps) == (4 if how == "hooks of all kinds" else 8)


def test_a_model_that_is_changed_before_its_optimizer_is_made(watched, work: Path) -> None:
    """As that of a GAN, when ``fully_shard`` replaces its parameters."""
    watched(
        f"""
        {TRAIN}
        import torch
        from torch import nn
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        other = nn.Linear(1, 1)
        torch.optim.SGD(other.parameters())
        model[0].weight = nn.Parameter(torch.full((5, 4), 0.5))
        model[2] = nn.Linear(5, 3)
        train(4, model=model)
        """,
        "--every",
        "1",
    )
    left = record(work)
    assert steps_of(left, "2/output", "rms") == [0, 1, 2, 3]
    assert left.curve("0/weight", "norm").values[0] == pytest.approx(20**0.5 * 0.5)
    assert left.curve("0/weight.update", "norm").values[-1] > 0


def test_warnings_name_the_lines_that_they_name_under_python(both_ways) -> None:
    ended = both_ways(
        """
        import torch, warnings
        warnings.simplefilter("always")
        def warn(levels, name):
            for level in range(1, levels + 1): warnings.warn(f"{name} {level}", stacklevel=level)
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return 2 * x
            @staticmethod
            def backward(ctx, gradient):
                warn(7, "backward")
                return 2 * gradient
        class Optimizer(torch.optim.SGD):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                warn(2, "optimizer")
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
        model[0].register_full_backward_hook(lambda *_: None)  # PyTorch warns in backward()
        optimizer = Optimizer(model.parameters(), lr=0.1)
        for _ in range(2):
            Double.apply(model(torch.ones(2, 4)).sum()).backward()
            optimizer.step()
        x = torch.ones(2, requires_grad=True)
        torch.autograd.backward([Double.apply(x).sum()], create_graph=True)
        """,
        "--every",
        "1",
    )
    assert re.search(r"UserWarning: backward \d\n  Double.apply\(model", ended.stderr)
    assert "UserWarning: Full backward hook is firing" in ended.stderr


NAMESPACES = r"""
    import sys
    import torch
    from torch import nn

    X = torch.ones(1, 2)

    def show(*namespaces):
        for held in namespaces:
            print([(name, value) for name, value in held.items() if type(value) is int])

    def train(net):
        net(X).sum().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()

    def function(lr=1, steps=2):
        config, own = locals(), vars()
        net, later = nn.Linear(2, 2), 3
        train(net)
        show(config, own)
        config["lr"] = 4
        train(nn.Linear(2, 2))
        show(config)

    def nested(size=1):
        def inner(scale=2):
            held, net = locals(), nn.Linear(2, 2)
            train(net)
            return held, size
        outer, net = locals(), nn.Linear(2, 2)
        show(*[(train(one), locals())[1] for one in [net]], outer, inner()[0])

    def generator(first=1):
        held = locals()
        net = nn.Linear(2, 2)
        yield net(X)
        second = 2
        train(net)
        show(held)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x, scale=1):
            held, later = locals(), 2
            self.inner(x)
            show(held)
            return self.inner(x)

    function()
    nested()
    list(generator())
    train(Model())
    Model().forward(X)
    class Body:
        one, held, net = 1, locals(), nn.Linear(2, 2)
        net(X)
        two = 2
        show({**held})
    exec("a = 1\nheld = locals()\nnet = nn.Linear(2, 2)\nnet(X)\nshow({**held})", globals(), {})

    def debugged(lr=1):
        net, mark = nn.Linear(2, 2), 2
        train(net)
        lr = lr + 1
        show({"lr": lr, "mark": mark})

    def trace(frame, event, argument):
        if frame.f_code is debugged.__code__:
            return change
    def change(frame, event, argument):
        if event == "line" and "mark" in frame.f_locals:
            variables = frame.f_locals
            variables["lr"] = 5
            nn.Linear(2, 2)(X)
            print(variables["lr"])
        return change

    sys.settrace(trace)
    debugged()
    sys.settrace(None)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["--every=1", "--list", "--capture", "--check", "--trace"])
def test_what_the_script_holds_of_its_variables_stays_as_it_is(both_ways, mode: str) -> None:
    ended = both_ways(NAMESPACES, mode, "--quiet")
    assert ended.own.stdout.startswith("[('lr', 1), ('steps', 2)]\n" * 2)


FREES = """
    import gc, weakref
    import torch
    from torch import nn

    gc.disable()  # nothing may wait for it

    def fold(has_optimizer):
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Tanh())
        optimizer = torch.optim.Adam(net.parameters()) if has_optimizer else None
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
            if optimizer is not None:
                optimizer.step()
        net(torch.ones(1, 2))
        return list(map(weakref.ref, [*net.modules(), *net.parameters()]))

    for has_optimizer in (True, True, False, True, True):
        left = fold(has_optimizer)
        print(sum(one() is not None for one in left))
"""
WATCHING = ["--every=1", "--stop-on=nan,inf", "--fingerprint", "--edit=*.0=scale:2"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("option", [*WATCHING, "--capture"])
def test_a_model_that_the_script_drops_is_freed_at_once(both_ways, work, option: str) -> None:
    ended = both_ways(FREES, option, "--quiet")
    assert ended.own.stdout.splitlines()[1:] == ["0"] * 4
    if option in WATCHING:
        run = record(work)
        assert (run.info["status"], run.info["incomplete"]) == ("finished", "")
        assert {model["parameters"] for model in run.info["models"]} == {12}
        assert len(run.steps) == 12  # a pass without an optimizer is part of the next step


def test_modules_as_deep_as_python_allows_run(both_ways) -> None:
    both_ways(
        """
        import torch
        from torch import nn
        class Inner(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module
            def forward(self, x):
                return self.module(x)
        model = nn.Identity()
        for _ in range(240):
            model = Inner(model)
        print(model(torch.ones(1)))
    """,
    )


# Trains, so that an edit changes each loss after the first one as well.
PROGRAM = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    {by_hand}
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).square().sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""
DOUBLED = "net[0].register_forward_hook(lambda module, args, output: 2 * output)"
TRIPLED = "net[2].register_forward_hook(lambda *_: _[2].register_hook(lambda g: 3 * g) and None)"
EDITS = {
    "--edit": ("net.0=scale:2", DOUBLED),
    "--grad-edit": ("2=scale:3", TRIPLED),
}


@pytest.mark.parametrize("option", EDITS)
def test_a_training_is_that_with_a_hook_by_hand_and_so_is_its_record(
    watched, work, option: str
) -> None:
    edit, hook = EDITS[option]
    by_hand = watched(PROGRAM.format(by_hand=hook), "--every", "1", "--quiet")
    ours = watched(PROGRAM.format(by_hand=""), "--every", "1", option, edit)
    assert (ours.own.stdout, ours.own.status) == (by_hand.own.stdout, 0)
    assert any(edit in message and "net." in message for message in ours.messages)
    expected, found = record(work, 1), record(work, 2)
    for key, measure in (("0/output", "rms"), ("1/output", "rms"), ("0/output.grad", "norm")):
        assert steps_of(found, key, measure) == [0, 1, 2]
        values = found.curve(key, measure).values
        assert list(values) == list(expected.curve(key, measure).values)
