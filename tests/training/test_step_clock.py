"""Which step a value belongs to, whatever optimizers a script has and in which order they step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
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


@given(order=st.permutations(range(4)), rounds=st.integers(1, 5), count=st.integers(1, 4))
def test_a_step_ends_with_the_last_optimizer_of_each_round(
    order: list[int], rounds: int, count: int
) -> None:
    known = optimizers(count)
    turns = [[known[n]] for n in order if n < count] * rounds
    expected = [list(range(n * count, (n + 1) * count)) for n in range(rounds)]
    assert steps_of(clock_of(known), turns) == expected


@given(count=st.integers(1, 4), rounds=st.integers(1, 5))
def test_optimizers_that_step_after_one_backward_pass_make_one_step(
    count: int, rounds: int
) -> None:
    known = optimizers(count)
    assert steps_of(clock_of(known), [known] * rounds) == [[n] for n in range(rounds)]


@given(order=st.permutations(range(4)), active=st.integers(1, 3), rounds=st.integers(1, 5))
def test_an_optimizer_that_never_steps_is_left_out(
    order: list[int], active: int, rounds: int
) -> None:
    known = optimizers(4)
    turns = [[known[n]] for n in order[:active]] * rounds
    expected = [list(range(n * active, (n + 1) * active)) for n in range(rounds)]
    assert steps_of(clock_of(known), turns) == expected


@given(phases=st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_optimizers_used_one_after_the_other_have_steps_of_their_own(phases: list[int]) -> None:
    known = optimizers(4)
    turns = [[known[n]] for n, count in enumerate(phases) for _ in range(count)]
    assert steps_of(clock_of(known), turns) == [[n] for n in range(sum(phases))]


@given(rounds=st.integers(2, 5), alone=st.integers(2, 9), which=st.integers(0, 1))
def test_an_optimizer_goes_on_alone_after_rounds_of_two(
    rounds: int, alone: int, which: int
) -> None:
    known = optimizers(2)
    turns = [[one] for one in known] * rounds + [[known[which]]] * alone
    pairs = [[2 * n, 2 * n + 1] for n in range(rounds)]
    singles = [[2 * rounds + n] for n in range(alone)]
    assert steps_of(clock_of(known), turns) == pairs + singles


@given(critic_steps=st.integers(2, 6), rounds=st.integers(1, 4))
def test_a_critic_with_several_steps_a_round_is_the_clock(critic_steps: int, rounds: int) -> None:
    critic, generator = optimizers(2)
    turns = ([[critic]] * critic_steps + [[generator]]) * rounds
    steps = steps_of(clock_of([generator, critic]), turns)
    # Each step has one turn of the critic; that of the generator belongs to the next one.
    assert len(steps) == critic_steps * rounds + 1
    assert all(sum(turns[n] == [critic] for n in step) == 1 for step in steps[:-1])
    assert [n for step in steps for n in step] == list(range(len(turns)))


@given(first=st.integers(1, 9), second=st.integers(1, 9))
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
