"""Which step a value belongs to, whatever optimizers a script has and in which order they step."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD

from hookscope.training.step_clock import StepClock


def optimizers(count: int) -> list[SGD]:
    return [SGD([torch.zeros(1, requires_grad=True)]) for _ in range(count)]


def clock_of(known: list[SGD]) -> StepClock:
    clock = StepClock()
    for optimizer in known:
        clock.add(optimizer)
    return clock


@given(order=st.permutations(range(4)), rounds=st.integers(1, 5), count=st.integers(1, 4))
def test_a_step_ends_with_the_last_optimizer_of_each_round(
    order: list[int], rounds: int, count: int
) -> None:
    known = optimizers(count)
    order = [n for n in order if n < count]
    clock = clock_of(known)
    ended = [[clock.has_ended(known[n]) for n in order] for _ in range(rounds)]
    assert ended == [[n == order[-1] for n in order]] * rounds
    assert clock.step == rounds


@given(order=st.permutations(range(4)), active=st.integers(1, 3), rounds=st.integers(2, 5))
def test_an_optimizer_that_never_steps_is_left_out(
    order: list[int], active: int, rounds: int
) -> None:
    known = optimizers(4)
    clock = clock_of(known)
    stepping = [known[n] for n in order[:active]]
    ended = [sum(map(clock.has_ended, stepping)) for _ in range(rounds)]
    assert ended == [0] + [1] * (rounds - 1)


@given(critic_steps=st.integers(2, 6), rounds=st.integers(1, 4))
def test_a_critic_with_several_steps_a_round_is_the_clock(critic_steps: int, rounds: int) -> None:
    critic, generator = optimizers(2)
    clock = clock_of([generator, critic])
    for _ in range(rounds):
        for _ in range(critic_steps):
            clock.has_ended(critic)
        assert not clock.has_ended(generator)
    assert clock.step == critic_steps * rounds - 1


@given(first=st.integers(1, 9), second=st.integers(1, 9))
def test_a_new_optimizer_takes_over(first: int, second: int) -> None:
    [old] = optimizers(1)
    clock = clock_of([old])
    for _ in range(first):
        assert clock.has_ended(old)
    [new] = optimizers(1)
    clock.add(new)
    ended = [clock.has_ended(new) for _ in range(second)]
    assert ended == [False] + [True] * (second - 1)


def test_a_new_optimizer_ends_its_first_step_if_the_old_one_is_gone() -> None:
    known = optimizers(1)
    clock = clock_of(known)
    assert clock.has_ended(known[0])
    known.clear()
    [new] = optimizers(1)
    clock.add(new)
    assert [clock.has_ended(new) for _ in range(3)] == [True] * 3


def test_the_clock_follows_an_optimizer_that_goes_on_alone() -> None:
    first, second = optimizers(2)
    clock = clock_of([first, second])
    for optimizer in (first, second) * 3:
        clock.has_ended(optimizer)
    assert clock.step == 3
    ended = [clock.has_ended(first) for _ in range(105)]
    assert ended == [False] * 99 + [True] * 6
