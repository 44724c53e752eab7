"""``run --edit`` acts in the program's calls of its models, in every mode and without one.

The oracle is the same program with a hook that was written by hand.
"""

from __future__ import annotations

import pytest

from tests.training.forked import record, steps_of

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("mode", ["--capture", "--check", "--trace"])
def test_each_mode_edits_and_names_what_it_edited(watched, mode: str) -> None:
    edit, hook = EDITS["--edit"]
    by_hand = watched(PROGRAM.format(by_hand=hook), mode, "--quiet")
    ours = watched(PROGRAM.format(by_hand=""), mode, "--edit", edit)
    assert (ours.own.stdout, ours.own.status) == (by_hand.own.stdout, 0)
    assert f"hookscope: the edit {edit!r} changed net.0." in ours.messages


def test_an_edit_of_no_layer_and_one_that_does_not_fit_are_said(watched) -> None:
    near = watched(PROGRAM.format(by_hand=""), "--edit", "net.7=zero")
    assert near.own.status == 0
    [message] = [one for one in near.messages if "'net.7'" in one]
    assert "net.0" in message
    unfit = watched(PROGRAM.format(by_hand=""), "--edit", "net.0[9]=zero")
    assert (unfit.own.status, unfit.own.stdout) == (2, "")
    assert any("channel 9" in message for message in unfit.messages)
