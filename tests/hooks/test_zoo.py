"""Every small model is recorded as hooks and ``autograd`` by hand have it, and stays as it was."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import hookscope
from tests.hooks.recordings import BOTH, hooks_left
from tests.oracle.by_hand import outputs, returned_inputs, same_bits, slipped_in
from tests.zoo import ZOO, names, tensors_in, total

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")

NOT_BY_HAND = {"lazy", "grows", "scripted"}  # no modules to hook, or none yet
STEADY = [name for name in names(raises=None, random=False) if name not in NOT_BY_HAND]
EXACTLY = {"rtol": 0, "atol": 0, "equal_nan": True}


@pytest.mark.parametrize("what", [["output"], BOTH], ids="+".join)
@pytest.mark.parametrize("name", STEADY)
def test_values_and_gradients_are_those_by_hand_and_nothing_is_left(
    name: str, what: list[str]
) -> None:
    one, bare, net = ZOO[name], ZOO[name].model(), ZOO[name].model()
    values = outputs(one.model(), *one.inputs(), **one.keywords())
    alone = one.run(bare)
    loss = total(alone)
    trains = one.trains and one.raises_backward is None
    if trains:
        loss.backward()
    with hookscope.record(net, what=what, grads=True) as capture:
        output = one.run(net)
        if trains:
            total(output).backward()
    assert all(map(same_bits, tensors_in(output), tensors_in(alone)))
    assert {r.key for r in capture.records if r.kind == "output"} >= set(values)
    assert all(same_bits(capture[key], value) for key, value in values.items())
    for (path, parameter), ours in zip(bare.named_parameters(), net.parameters(), strict=True):
        assert (parameter.grad is None) == (ours.grad is None)
        if parameter.grad is not None:
            layer, _, own = path.rpartition(".")
            grads = [ours.grad]
            if name != "checkpointed reentrant":  # a backward pass of its own for each call
                grads.append(capture[f"{layer or '.'}/{own}.grad"])
            for grad in grads:
                torch.testing.assert_close(grad.to_dense(), parameter.grad.to_dense(), **EXACTLY)
    calls = {part.module: part.calls for part in capture.coverage.executed}
    assert Counter(one.calls) == {name: count for name, count in calls.items() if name != "."}
    assert hooks_left(net) == hooks_left(bare)


# What clones change, and what has nothing to slip in.
NOT_BY_CLONES = {"alias", "writes view", "checkpointed reentrant", "other dtype complex"}
BY_CLONES = set(STEADY) & set(names(trains=True, stateful=False, raises_backward=None))


@pytest.mark.parametrize("name", sorted(BY_CLONES - NOT_BY_CLONES))
def test_gradients_inside_are_those_at_clones_that_are_slipped_in(name: str) -> None:
    one, net = ZOO[name], ZOO[name].model()
    with slipped_in(net) as kept:
        loss = total(one.run(net))
    grads = torch.autograd.grad(loss, list(kept.values()), allow_unused=True)
    given_back = returned_inputs(net, *one.inputs(), **one.keywords())
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        total(one.run(net)).backward()
    for key, grad in zip(kept, grads, strict=True):
        if f"{key}.grad" not in given_back and f"{key}.grad" in capture:
            found = capture[f"{key}.grad"]
            expected = torch.zeros_like(found) if grad is None else grad
            torch.testing.assert_close(found, expected, equal_nan=True, msg=key)
