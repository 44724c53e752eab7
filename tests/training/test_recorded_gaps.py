"""What a run cannot see is listed with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.forked import FORKS, record

pytestmark = FORKS

SCRIPT = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
{before}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(3, 4)
    optimizer.zero_grad()
    ({call}).square().mean().backward()
    optimizer.step()
"""
# The model, how it is called, and the beginning of what is listed.
UNSEEN = {
    "forward of a layer": ("", "net[2](net[1](net[0].forward(x)))", "outputs of 0 of net"),
    "forward of the model": ("", "net.forward(x)", "outputs of (model) of net"),
    "weights in a function": (
        "",
        "net[2](nn.functional.linear(x, net[0].weight, net[0].bias).relu())",
        "outputs of 0 of net",
    ),
    "compiled": ("", "torch.compile(net, backend='eager')(x)", "outputs of compiled"),
    "scripted": ("net = torch.jit.script(net)", "net(x)", "outputs of scripted"),
    "traced": ("net = torch.jit.trace(net, torch.ones(3, 4))", "net(x)", "outputs of scripted"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", UNSEEN)
def test_layers_whose_outputs_pass_by_their_hooks_are_listed(watched, work: Path, how: str) -> None:
    before, call, what = UNSEEN[how]
    ended = watched(SCRIPT.format(before=before, call=call), "--every", "1")
    run = record(work)
    assert (ended.status, run.info["status"], run.info["incomplete"]) == (0, "finished", "")
    assert [entry for entry in run.info["unwatched"] if entry["what"].startswith(what)]
    assert run.curve("0/weight.update", "norm", "net").steps.tolist() == [0, 1, 2]


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
            ["updates"],
        ),
        (
            "optimizer = torch.optim.SGD(masters, lr=0.1)",
            "torch.autograd.grad(loss, list(net.parameters()))",
            "master.grad = gradient",
            "optimizer.step()",
            ["the loss", "updates of SGD"],
        ),
    ],
    ids=["no optimizer", "an optimizer of copies"],
)
def test_updates_and_losses_that_cannot_be_seen_are_listed(
    watched, work: Path, optimizer: str, gradients: str, update: str, step: str, whats: list[str]
) -> None:
    text = OWN_UPDATES.format(optimizer=optimizer, gradients=gradients, update=update, step=step)
    assert watched(text, "--every", "1").status == 0
    found = [entry["what"] for entry in record(work).info["unwatched"]]
    assert all(a.startswith(b) for a, b in zip(found, whats, strict=True)), found
