"""What a run cannot see is listed with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.training.forked import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks with torch imported"),
]

UNSEEN = {
    "forward of a layer": ("net[2](net[1](net[0].forward(x)))", "outputs of 0 of net"),
    "forward of the model": ("net.forward(x)", "outputs of (model) of net"),
    "weights in a function": (
        "net[2](nn.functional.linear(x, net[0].weight, net[0].bias).relu())",
        "outputs of 0 of net",
    ),
    "compiled model": (
        "torch.compile(net, backend='eager')(x)",
        "outputs of compiled layers of net",
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", UNSEEN)
def test_layers_whose_outputs_pass_by_their_hooks_are_listed(watched, work: Path, how: str) -> None:
    call, what = UNSEEN[how]
    ended = watched(
        f"""
        import torch
        from torch import nn
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(3, 4)
        for _ in range(3):
            optimizer.zero_grad()
            ({call}).square().mean().backward()
            optimizer.step()
        """,
        "--every",
        "1",
    )
    run = record(work)
    assert (ended.status, run.info["status"], run.info["incomplete"]) == (0, "finished", "")
    assert [entry for entry in run.info["unwatched"] if entry["what"].startswith(what)]


OWN_UPDATES = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
masters = [weight.detach().clone() for weight in net.parameters()]
{optimizer}
for _ in range(3):
    loss = net(torch.randn(3, 4)).square().mean()
    gradients = {gradients}
    for weight, master, gradient in zip(net.parameters(), masters, gradients):
        {update}
        weight.data.copy_(master)
        weight.grad = None
    {step}
"""


@pytest.mark.parametrize(
    ("optimizer", "gradients", "update", "step", "whats"),
    [
        (
            "",
            "loss.backward() or [weight.grad for weight in net.parameters()]",
            "master -= 0.1 * gradient",
            "",
            ["updates and learning rates"],
        ),
        (
            "optimizer = torch.optim.SGD(masters, lr=0.1)",
            "torch.autograd.grad(loss, list(net.parameters()))",
            "master.grad = gradient",
            "optimizer.step()",
            ["the loss and gradients at outputs", "updates of SGD"],
        ),
    ],
    ids=["no optimizer", "an optimizer of copies"],
)
def test_updates_and_losses_that_cannot_be_seen_are_listed(
    watched, work: Path, optimizer: str, gradients: str, update: str, step: str, whats: list[str]
) -> None:
    text = OWN_UPDATES.format(optimizer=optimizer, gradients=gradients, update=update, step=step)
    assert watched(text, "--every", "1").status == 0
    assert [entry["what"] for entry in record(work).info["unwatched"]] == whats


@pytest.mark.parametrize("function", ["script(net)", "trace(net, torch.ones(3, 4))"])
def test_a_model_in_torchscript_has_parameters_and_no_outputs(
    watched, work: Path, function: str
) -> None:
    text = f"""
    import torch
    from torch import nn
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net = torch.jit.{function}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    """
    assert watched(text, "--every", "1").status == 0
    run = record(work)
    [entry] = run.info["unwatched"]
    assert entry["what"] == "outputs of scripted layers of net" and not run.info["incomplete"]
    assert run.curve("0/weight.update", "norm", "net").steps.tolist() == [0, 1, 2]
