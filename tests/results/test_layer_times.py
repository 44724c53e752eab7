"""Medians, spreads and shares of repeated runs are those of numpy; hooks are subtracted once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hookscope.errors import CheckFailed
from hookscope.results.layer_times import (
    HookCost,
    LayerTime,
    LayerTimes,
    Timing,
    check_same_calls,
    typical_run,
    without_hooks,
)
from hookscope.results.trace_events import BACKWARD, FORWARD, ListedLayer, TraceEvent

NO_COST = {FORWARD: HookCost(), BACKWARD: HookCost()}


def event(
    module: str, depth: int, time: float, own: float, direction: str = FORWARD, call: int = 1
) -> TraceEvent:
    return TraceEvent(direction, module, "Any", call, depth, (), (), 0, 0.0, time, own)


def each_module(run: Sequence[TraceEvent]) -> list[ListedLayer]:
    names = dict.fromkeys(one.module for one in run)
    return [ListedLayer(name, "Any", frozenset({name})) for name in names]


def statistics_of(runs: Sequence[Sequence[TraceEvent]]) -> dict[tuple[str, str], LayerTime]:
    times = LayerTimes.of(runs, each_module(runs[0]), 0, NO_COST)
    return {(layer.direction, layer.module): layer for layer in times.layers}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 20, 101])
def test_median_and_spread_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    found = Timing.of(values.tolist())
    assert found.median == pytest.approx(np.median(values), rel=1e-12)
    low, high = np.percentile(values, [25, 75])
    assert found.spread == pytest.approx(high - low, rel=1e-9)


def test_one_run_has_no_spread() -> None:
    assert Timing.of([3.0]) == Timing(3.0, None)


def test_numbers_of_layers_are_those_of_the_runs() -> None:
    rng = np.random.default_rng(0)
    a, b, own, back = rng.uniform(1, 2, (4, 9))
    runs = [
        [
            event(".", 0, a[i] + b[i] + own[i], own[i]),
            event("a", 1, a[i], a[i]),
            event("b", 1, b[i] / 2, b[i] / 2),
            event("b", 1, b[i] / 2, b[i] / 2, call=2),
            event(".", 0, back[i], back[i], BACKWARD),
        ]
        for i in range(9)
    ]
    found = statistics_of(runs)
    whole = np.median(a + b + own) + np.median(back)
    assert list(found) == [(FORWARD, "."), (FORWARD, "a"), (FORWARD, "b"), (BACKWARD, ".")]
    for name, times in (("a", a), ("b", b)):
        layer = found[FORWARD, name]
        assert layer.time.median == layer.own.median == pytest.approx(np.median(times))
        assert layer.time.spread == pytest.approx(np.subtract(*np.percentile(times, [75, 25])))
        assert layer.share == layer.own_share == pytest.approx(np.median(times) / whole)
    model = found[FORWARD, "."]
    assert model.own.median == pytest.approx(np.median(own))
    assert model.share is not None and found[BACKWARD, "."].share is not None
    assert model.share + found[BACKWARD, "."].share == pytest.approx(1)
    assert [found[FORWARD, name].calls for name in (".", "a", "b")] == [1, 1, 2]
    assert LayerTimes.of(runs, each_module(runs[0]), 0, NO_COST).total(BACKWARD) == pytest.approx(
        np.median(back)
    )


def test_a_layer_within_itself_counts_once() -> None:
    run = [event(".", 0, 10, 1), event("a", 1, 9, 4), event("a", 2, 5, 5, call=2)]
    layer = statistics_of([run])[FORWARD, "a"]
    assert (layer.calls, layer.time.median, layer.own.median) == (2, 9, 9)


def test_a_run_without_time_has_no_shares() -> None:
    assert statistics_of([[event(".", 0, 0.0, 0.0)]])[FORWARD, "."].share is None


def test_hooks_are_subtracted_from_their_layer_and_from_all_around_it() -> None:
    """By hand: hooks add 3 to each call and 5 to its caller; a takes 10, b 20, the rest 1 and 2."""
    inner, outer = 3.0, 5.0
    b = 20 + inner
    a = [10 + 1 + inner + outer + b, 10 + 1 + inner + outer]
    model = [2 + inner + outer + a[0], 2 + inner + outer]
    run = [event(".", 0, *model), event("a", 1, *a), event("b", 2, b, b)]
    cost = {FORWARD: HookCost(inner, outer), BACKWARD: HookCost(100.0, 100.0)}
    found = [(one.time, one.own) for one in without_hooks(run, cost)]
    assert found == [(33, 2), (31, 11), (20, 20)]
    assert without_hooks([event(".", 0, 1.0, 1.0)], cost)[0].time == 0.0  # no less than nothing


def test_the_typical_run_is_nested_and_has_the_medians() -> None:
    def run(a: float, b: float, own: float) -> list[TraceEvent]:
        forward = [
            event(".", 0, a + b + own, own),
            event("a", 1, a, a),
            event("b", 1, b, b),
        ]
        return [*forward, event(".", 0, 4.0, 4.0, BACKWARD)]

    runs = [run(1, 9, 2), run(2, 7, 3), run(3, 8, 1)]
    events = typical_run(runs, each_module(runs[0]))
    assert [(e.module, e.start, e.time, e.own) for e in events] == [
        (".", 0, 12, 2),
        ("a", 0, 2, 2),
        ("b", 2, 8, 8),
        (".", 12, 4, 4),
    ]


def test_runs_with_other_calls_have_no_medians() -> None:
    first, second = [event(".", 0, 1, 1)], [event(".", 0, 1, 1), event("a", 1, 1, 1)]
    listed = each_module(second)
    check_same_calls([first, first], listed)
    with pytest.raises(CheckFailed, match=r"a .*\b0 .*\b1 in run 3"):
        check_same_calls([first, first, second], listed)
