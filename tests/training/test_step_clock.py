"""Which step a value belongs to, whatever optimizers a script has and in which order they step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch.optim import SGD

from hookscope.training.open_steps import StepClock


def optimizers(count: int) -> list[SGD]:
    return [SGD([torch.zeros(1, requires_grad=True)]) for _ in range(count)]


def clock_of(known: list[SGD]) -> StepClock:
    clock = StepClock()
    for optimizer in known:
        clock.add(optimizer)
    return clock


def steps_of(clock: StepClock, turns: Iterable[Sequence[SGD]]) -> list[list[int]]:
    """The numbers of the turns of each step; the last is one that has not ended, if there is one.

    In a turn there is one backward pass, and then each of some optimizers steps.
    """
    steps: list[list[int]] = []
    held: list[int] = []
    for number, turn in enumerate(turns):
        clock.before_backward()
        held.append(number)
        for n, optimizer in enumerate(turn):
            assert clock.resumes(optimizer) == (n > 0 and bool(held))
            ended = clock.count(optimizer)
            for count in ended.held:
                steps.append(held[:count])
                held = held[count:]
            if ended.current:
                steps.append(held)
                held = []
    return [*steps, held] if held else steps


ROUNDS = ["a", "ab", "ba", "abc", "cab", "bca", "abcd", "dbac", "cdab"]
# The turns of optimizers in the steps that they make; ``(ab)`` is one turn of two of them.
STEPS = [
    *("|".join([order] * rounds) for order in ROUNDS for rounds in (1, 2, 5)),
    *("(ab)|(ab)|(ab)", "(abcd)|(abcd)"),
    *("a|a|b|b|b|c|c|d|d|d", "c|c|c|a|a", "d|d|a|a|a|a"),  # one after the other
    *("ab|ab|a|a|a|a", "ab|ab|b|b", "ab|ab|ab|a|a"),  # one goes on alone
    *("a|a|ba|a|b", "a|a|a|ba|a|a|b", "a|a|a|a|ba|a|a|a|ba|a|a|a|b"),  # a critic is the clock
]


@pytest.mark.parametrize("others", ["none", "two that never step"])
@pytest.mark.parametrize("text", STEPS)
def test_turns_make_the_steps_that_one_expects(text: str, others: str) -> None:
    by_name = dict(zip("abcd", optimizers(4), strict=True))
    turns, expected = [], []
    for step in text.split("|"):
        expected.append([])
        for turn in re.findall(r"\w+(?=\))|\w", step):
            expected[-1].append(len(turns))
            turns.append([by_name[name] for name in turn])
    used = {*text} if others == "none" else {*by_name}
    clock = clock_of([optimizer for name, optimizer in by_name.items() if name in used])
    assert steps_of(clock, turns) == expected


@pytest.mark.parametrize(("first", "second"), [(1, 1), (9, 2), (2, 9)])
def test_a_new_optimizer_takes_over(first: int, second: int) -> None:
    [old] = optimizers(1)
    clock = clock_of([old])
    assert steps_of(clock, [[old]] * first) == [[n] for n in range(first)]
    [new] = optimizers(1)
    clock.add(new)
    assert steps_of(clock, [[new]] * second) == [[n] for n in range(second)]


def test_a_new_optimizer_ends_its_first_step_if_the_old_one_is_gone() -> None:
    known = optimizers(1)
    clock = clock_of(known)
    assert clock.count(known[0]).current
    known.clear()
    [new] = optimizers(1)
    clock.add(new)
    assert [clock.count(new) for _ in range(3)] == [([], True)] * 3


def test_a_step_without_a_backward_pass_ends_each_time_it_is_made_again() -> None:
    known = optimizers(2)  # as with gradients of torch.autograd.grad
    clock = clock_of(known)
    ended = []
    for optimizer in known * 3:
        clock.resumes(optimizer)
        ended.append(clock.count(optimizer))
    assert ended == [([], False), ([], True)] * 3
