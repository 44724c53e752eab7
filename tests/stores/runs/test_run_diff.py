"""Two runs that part at a planted step and layer, compared."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope.errors import LayerError, RequestError
from hookscope.file_analysis.run_diff import (
    KINDS,
    LEARNING_RATE,
    LOSS,
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER_GRAD,
    UPDATE,
    RunDiff,
    compare_runs,
)
from hookscope.specs.diff_request import RunDiffOptions
from hookscope.stores.runs.series import LAYERS
from hookscope.views.run_diff import run_diff_lines
from hookscope.views.text.text_table import TextOptions
from tests.stores.runs.healthy_run import TRAINED, TYPES, HealthyRun

STEPS = 40
NAMES = list(TYPES)


def test_a_narrow_terminal_has_the_values_of_both_and_the_places_below() -> None:
    changed = HealthyRun().plant("conv2/output", "rms", 9, 13)
    result = compare(HealthyRun(), changed)
    long = "encoder.layers.11.self_attention.projection"
    rows = tuple(
        replace(row, first=row.first and replace(row.first, layer=long, key=f"{long}/output"))
        for row in result.rows
    )
    result = replace(result, rows=rows)
    for width in (60, 80, 100):
        lines = [line.plain for line in run_diff_lines(result, TextOptions(width=width))]
        assert lines[0].split()[-2:] == ["A", "B"]
        [at] = [n for n, line in enumerate(lines) if line.startswith("outputs")]
        assert float(lines[at].split()[-1]) == 9
        assert lines[at + 1].strip().startswith(f"{long}/output, rms"[: width - 4])
        assert all(len(line) <= width for line in lines)
    wide = [line.plain for line in run_diff_lines(result, TextOptions(width=140))]
    assert wide[0].split()[-4:] == ["where", "measure", "A", "B"]


def compare(a: HealthyRun, b: HealthyRun, **options) -> RunDiff:
    with tempfile.TemporaryDirectory() as folder:
        paths = (a.write(Path(folder, "a")), b.write(Path(folder, "b")))
        return compare_runs(*paths, RunDiffOptions(**options))


def test_a_run_that_is_repeated_is_the_same_whatever_its_durations() -> None:
    again = HealthyRun()
    for step in range(STEPS):
        again.plant("step", "seconds", 100, step)
    result = compare(HealthyRun(), again, strict=True)
    assert result.same and result.first is None and result.first_layer is None
    assert (result.steps, result.sampled) == ((40, 40, 40),) * 2
    assert [row.kind for row in result.rows] == [kind for kind in KINDS if kind != "loss_scale"]
    assert all(row.differing == 0 and row.series for row in result.rows)


@settings(max_examples=15)
@given(st.integers(0, STEPS - 1), st.integers(0, len(NAMES) - 1))
def test_the_first_step_and_layer_are_those_planted(step: int, index: int) -> None:
    changed = HealthyRun()
    for name in NAMES[index:]:
        changed.plant(f"{name}/output", "max", 77, range(step, STEPS))
    for name in NAMES[: index + 1]:  # the backward pass goes on to all before it
        changed.plant(f"{name}/output.grad", "norm", 77, range(step, STEPS))
    changed.plant("loss", "value", 77, range(step, STEPS))
    result = compare(HealthyRun(), changed)
    assert result.first is not None and not result.same
    first = result.first
    assert (first.step, first.kind, first.layer) == (step, OUTPUT, NAMES[index])
    assert (first.measure, first.b) == ("max", 77)
    rows = {row.kind: row for row in result.rows}
    gradient = rows[OUTPUT_GRAD].first
    assert gradient is not None and (gradient.step, gradient.layer) == (step, NAMES[index])
    assert rows[OUTPUT].differing == len(NAMES) - index
    assert rows[LOSS].first is not None and rows[PARAMETER_GRAD].first is None


@settings(max_examples=8)
@given(st.integers(0, STEPS - 1))
def test_another_order_of_batches_shows_in_the_first_layer(step: int) -> None:
    """The weights are still equal at the step with another batch, all that it meets is not."""
    other, mixed = HealthyRun(seed=1), HealthyRun()
    for n in range(step, STEPS):
        before = mixed.tables[LAYERS][n]
        weights = {
            one: before[one]
            for one in before
            if one.measure == "norm" and one.what in ("weight", "bias") and n == step
        }
        mixed.tables[LAYERS][n] = other.tables[LAYERS][n] | weights
        mixed.tables["steps"][n] = other.tables["steps"][n]
    first = compare(HealthyRun(), mixed).first
    assert first is not None
    assert (first.step, first.layer, first.kind) == (step, "conv1", OUTPUT)


def test_between_samples_the_loss_says_the_step_and_the_next_sample_the_layer() -> None:
    sampled = (0, 10, 20, 30)
    changed = HealthyRun(sampled=sampled).plant("loss", "value", 5, range(13, STEPS))
    for name in NAMES:
        changed.plant(f"{name}/output", "rms", 5, range(13, STEPS))
    result = compare(HealthyRun(sampled=sampled), changed)
    assert result.first is not None and result.first_layer is not None
    assert (result.first.step, result.first.kind, result.first.layer) == (13, LOSS, "")
    assert (result.first_layer.step, result.first_layer.layer) == (20, "conv1")


def test_gradients_are_compared_from_the_last_layer_to_the_first() -> None:
    changed = HealthyRun()
    for name in TRAINED:
        changed.plant(f"{name}/weight.grad", "norm", 5, range(9, STEPS))
        changed.plant(f"{name}/weight.update", "norm", 5, range(9, STEPS))
    rows = {row.kind: row.first for row in compare(HealthyRun(), changed).rows}
    assert rows[PARAMETER_GRAD] is not None and rows[PARAMETER_GRAD].layer == "fc"
    assert rows[UPDATE] is not None and rows[UPDATE].layer == "conv1"


def test_another_learning_rate_is_a_difference() -> None:
    changed = HealthyRun()
    for step in range(9, STEPS):
        row = changed.tables["steps"][step]
        row |= {one: 0.2 for one in row if one.measure == "lr"}
    first = compare(HealthyRun(), changed).first
    assert first is not None
    assert (first.kind, first.step, first.b) == (LEARNING_RATE, 9, pytest.approx(0.2))


def test_a_shift_compares_later_steps_of_a() -> None:
    """Weights are named before all else, and A's earlier steps do not count."""
    whole, resumed = HealthyRun(), HealthyRun()
    for step in range(STEPS):
        whole.plant("batch", "hash", step, step)
    resumed.tables = {
        table: {step - 15: dict(row) for step, row in rows.items() if step >= 15}
        for table, rows in whole.tables.items()
    }
    assert compare(whole, resumed, shift=15, strict=True).same
    assert not compare(whole, resumed).same and not compare(whole, resumed, shift=14).same
    resumed.plant("fc/weight", "norm", 6, 10).plant("fc/output", "rms", 6, 10)
    result = compare(whole, resumed, shift=15)
    assert (result.steps, result.sampled) == ((25, 25, 25),) * 2
    assert result.first is not None and (result.first.key, result.first.step) == ("fc/weight", 25)
    assert result.seam == {
        "parameter": True,
        "state": None,
        "lr": True,
        "batch": True,
        "generators": None,
    }
    resumed.plant("batch", "hash", 7, 0).plant("fc/weight", "adam_rms", 9, 0)
    result = compare(whole, resumed, shift=15)
    assert (result.same_batch, result.seam["batch"], result.seam["parameter"]) == (7, False, True)
    assert compare(whole, resumed, shift=15, atol=1).seam["batch"]


def test_a_resumed_run_needs_a_sampled_step() -> None:
    with pytest.raises(RequestError, match="15") as caught:
        compare(HealthyRun(sampled=range(0, STEPS, 2)), HealthyRun(), shift=15)
    assert "hookscope run --every 15 SCRIPT" in caught.value.hint


def test_tolerances_are_those_of_the_formula() -> None:
    a = HealthyRun().plant("loss", "value", 2.0, 5)
    b = HealthyRun().plant("loss", "value", 2.5, 5)
    assert not compare(a, b).same
    assert compare(a, b, atol=0.5).same and not compare(a, b, atol=0.49).same
    assert compare(a, b, rtol=0.25).same and not compare(a, b, rtol=0.24).same
    assert compare(a, b, atol=0.25, rtol=0.125).same
    infinite = HealthyRun().plant("loss", "value", math.inf, 5)
    assert not compare(infinite, b, rtol=1).same and compare(infinite, infinite).same


def test_nan_in_both_is_equal_and_in_one_it_is_not() -> None:
    bad = HealthyRun().plant("loss", "value", math.nan, range(5, STEPS))
    assert compare(bad, bad).same
    for pair in ((bad, HealthyRun()), (HealthyRun(), bad)):
        first = compare(*pair, rtol=1).first
        assert first is not None and first.step == 5


def test_other_lengths_samples_and_series_are_told_and_count_if_strict() -> None:
    short = HealthyRun(sampled=range(0, STEPS, 5))
    long = HealthyRun(sampled=range(0, STEPS, 5)).remove("relu1/output", "dead")
    del long.tables[LAYERS][20]
    for step in range(30, STEPS):
        del short.tables["steps"][step]
    result = compare(short, long)
    assert result.same and not compare(short, long, strict=True).same
    assert (result.steps, result.sampled) == ((30, 40, 30), (8, 7, 7))
    assert (result.only_a, result.only_b) == (("relu1/output dead",), ())


def test_a_value_that_only_one_run_has_at_a_step_is_not_compared() -> None:
    changed = HealthyRun()
    del changed.tables[LAYERS][5][changed.series("relu1/output", "dead")]
    assert compare(HealthyRun(), changed).same and compare(changed, HealthyRun()).same


def test_models_of_another_name_are_compared_if_each_run_has_one() -> None:
    renamed = HealthyRun(model="other").plant("conv2/output", "rms", 5, 7)
    first = compare(HealthyRun(), renamed).first
    assert first is not None and (first.model, first.layer, first.step) == ("net", "conv2", 7)


def test_layers_narrow_the_comparison() -> None:
    changed = HealthyRun().plant("conv2/output", "rms", 5, 7).plant("loss", "value", 5, 3)
    assert compare(HealthyRun(), changed, layers="conv{1,3}").same
    result = compare(HealthyRun(), changed, layers=["conv*", "!conv1"])
    assert result.first is not None and result.first.layer == "conv2"
    with pytest.raises(LayerError, match="'conv9'"):
        compare(HealthyRun(), changed, layers="conv9")


def test_ranks_are_compared_one_by_one(tmp_path: Path) -> None:
    other = HealthyRun().plant("conv2/output", "rms", 9, 13).plant("fc/output", "rms", 9, 21)
    later = HealthyRun().plant("conv1/output", "rms", 9, 17)
    for side, runs in (("a", [HealthyRun()] * 3), ("b", [later, other])):
        for rank, run in enumerate(runs):
            run.info["rank"] = rank
            run.write(tmp_path / side / f"rank{rank}")
    result = compare_runs(tmp_path / "a", tmp_path / "b", RunDiffOptions())
    assert result.first is not None and (result.a["ranks"], result.b["ranks"]) == (
        [0, 1, 2],
        [0, 1],
    )
    assert (result.first.step, result.first.rank, result.first.layer) == (13, 1, "conv2")
    alone = compare_runs(tmp_path / "a/rank1", tmp_path / "b/rank1", RunDiffOptions())
    assert alone.first == replace(result.first, rank=None) and alone.steps == result.steps
    outputs, of_one = (
        next(row for row in found.rows if row.kind == "output") for found in (result, alone)
    )
    assert (outputs.series, outputs.differing) == (2 * of_one.series, 3)
    assert (result.only_a, result.only_b) == (("rank 2",), ())
    text = "\n".join(line.plain for line in run_diff_lines(result, TextOptions(width=None)))
    assert "step 13: conv2/output (rank 1), rms" in text
    assert "Only A has rank 2." in text
    same = compare_runs(tmp_path / "a", tmp_path / "a", RunDiffOptions(strict=True))
    assert same.same and same.first is None


def test_no_common_step_and_several_ranks_are_errors(tmp_path: Path) -> None:
    late = HealthyRun()
    late.tables = {
        table: {step + 100: row for step, row in rows.items()}
        for table, rows in late.tables.items()
    }
    with pytest.raises(RequestError, match="step"):
        compare(HealthyRun(), late)
    HealthyRun().write(tmp_path / "ranks" / "rank0")
    one = HealthyRun().write(tmp_path / "one")
    with pytest.raises(RequestError, match="the runs of 1 ranks"):
        compare_runs(tmp_path / "ranks", one, RunDiffOptions())
