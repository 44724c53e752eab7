"""The folders of several ranks as one run: each measure combined as its meaning demands."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookscope.errors import ResultsFileError
from hookscope.stores.runs.rank_runs import RankRuns, open_run
from hookscope.stores.runs.run_info import RunEvent
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from tests.run_folders import model_info, plain_info
from tests.stores.runs.conftest import LOSS, Rows, write_run


def net(key: str, measure: str) -> Series:
    return Series("Net", key, measure)


def write_ranks(
    folder: Path, rows: list[Rows], layout: str = "whole", table: str = "layers", **info: Any
) -> RankRuns:
    for rank, entries in enumerate(rows):
        about = {"rank": rank, "world_size": len(rows), "models": [model_info(layout=layout)]}
        write_run(folder / f"rank{rank}", **{table: entries}, **{**about, **info})
    return RankRuns(folder)


# Numbers worked out on paper, for ranks with 3.0 and 4.0.
@pytest.mark.parametrize(
    ("key", "measure", "whole", "sharded"),
    [
        ("fc/output", "rms", math.sqrt(12.5), math.sqrt(12.5)),
        ("fc/output", "max", 4.0, 4.0),
        ("fc/output", "zeros", 3.5, 3.5),
        ("fc/output", "dead", 3.5, 3.5),
        ("fc/output", "nonfinite", 7.0, 7.0),
        ("fc/output.last_hidden_state", "rms", math.sqrt(12.5), math.sqrt(12.5)),
        ("fc/output.grad", "norm", math.sqrt(12.5), math.sqrt(12.5)),
        ("fc/output.grad", "max", 4.0, 4.0),
        ("fc/weight", "norm", 3.0, 5.0),
        ("fc/weight", "adam_rms", 3.0, math.sqrt(12.5)),
        ("fc/weight.grad", "norm", 3.0, 5.0),
        ("fc/weight.grad", "nonfinite", 3.0, 7.0),
        ("fc/weight.update", "norm", 3.0, 5.0),
        ("gradients", "norm", 3.0, 5.0),
        ("gradients", "clipped", 3.0, 3.0),
    ],
)
def test_a_measure_of_two_ranks(
    tmp_path: Path, key: str, measure: str, whole: float, sharded: float
) -> None:
    rows = [[(0, {net(key, measure): value})] for value in (3.0, 4.0)]
    for layout, expected in (("whole", whole), ("sharded", sharded)):
        run = write_ranks(tmp_path / layout, rows, layout)
        assert run.curve(key, measure).values.tolist() == [np.float32(expected)]


def test_the_ratio_of_a_sharded_parameter_is_that_of_the_whole_one(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=10)
    updates = np.random.default_rng(1).normal(size=10) / 100
    rows = []
    for part in (slice(0, 4), slice(4, 10)):
        weight, update = np.linalg.norm(weights[part]), np.linalg.norm(updates[part])
        row = {net("fc/weight", "norm"): weight, net("fc/weight.update", "norm"): update}
        rows.append([(0, {**row, net("fc/weight.update", "ratio"): update / weight})])
    run = write_ranks(tmp_path / "sharded", rows, "sharded")
    expected = np.linalg.norm(updates) / np.linalg.norm(weights)
    assert run.curve("fc/weight.update", "ratio").values[0] == pytest.approx(expected, rel=1e-6)
    whole = write_ranks(tmp_path / "whole", rows)
    assert whole.curve("fc/weight.update", "ratio").values[0] == np.float32(
        rows[0][0][1][net("fc/weight.update", "ratio")]
    )


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (LOSS, 3.0),
        (Series("", "step", "seconds"), 4.0),
        (Series("", "batch", "samples"), 6.0),
        (Series("", "batch", "tokens"), 6.0),
        (Series("Adam", "groups.0", "lr"), 2.0),
        (Series("", "loss_scale", "skipped"), 4.0),
    ],
    ids=str,
)
def test_a_number_of_a_step(tmp_path: Path, series: Series, expected: float) -> None:
    run = write_ranks(tmp_path, [[(0, {series: 2.0})], [(0, {series: 4.0})]], table="steps")
    assert run.steps.curve(series).values.tolist() == [expected]


def test_rows_are_those_that_all_ranks_have(tmp_path: Path) -> None:
    rows: list[Rows] = [
        [(step, {LOSS: step * scale}) for step in steps]
        for scale, steps in ((1.0, range(6)), (3.0, range(1, 4)))
    ]
    write_ranks(tmp_path, rows, table="steps")
    for rank, steps in ((0, 6), (1, 4)):
        path = tmp_path / f"rank{rank}"
        RunWriter(path, plain_info(steps=steps, rank=rank, status="finished" if rank else "failed"))
    run = RankRuns(tmp_path)
    assert run.curve("loss", "value").steps.tolist() == [1, 2, 3]
    assert run.curve("loss", "value").values.tolist() == [2.0, 4.0, 6.0]
    assert run.steps.times.tolist() == [0.1, 0.2, 0.3]
    assert (run.ended_early, run.info["steps"], run.info["status"]) == ([(1, 4)], 4, "failed")


def test_a_value_that_one_rank_lacks_is_that_of_the_others(tmp_path: Path) -> None:
    rms, late = net("fc/output", "rms"), net("late/output", "max")
    rows: list[Rows] = [
        [(0, {rms: 3.0}), (1, {late: 5.0})],
        [(0, {rms: 4.0, late: 1.0}), (1, {rms: 2.0, late: math.nan})],
    ]
    run = write_ranks(tmp_path, rows)
    assert run.curve("fc/output", "rms").values.tolist() == [np.float32(math.sqrt(12.5)), 2.0]
    assert run.layers.series == (rms, late)
    values = run.curve("late/output", "max").values
    assert values[0] == 1 and math.isnan(values[1])


def test_events_gaps_and_reasons_name_their_rank(tmp_path: Path) -> None:
    unwatched = {"what": "Net.head", "reason": "compiled"}
    write_ranks(tmp_path, [[], []], unwatched=[unwatched], incomplete="")
    about = plain_info(rank=1, incomplete="The disk is full.", unwatched=[unwatched])
    writer = RunWriter(tmp_path / "rank1", about)
    writer.add_event(RunEvent(5, "stopped", "forward", "Net", "fc", 1, "NaN in fc.", "a.capture"))
    run = RankRuns(tmp_path)
    [event] = run.events
    assert (event.message, event.file) == ("Rank 1: NaN in fc.", "rank1/a.capture")
    assert run.info["incomplete"] == "rank 1: The disk is full."
    assert run.info["unwatched"] == [unwatched]


def test_a_folder_opens_as_what_it_is(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks", [[(0, {LOSS: 1.0})]] * 11)
    run = open_run(tmp_path / "ranks")
    assert isinstance(run, RankRuns) and [r.info["rank"] for r in run.runs] == list(range(11))
    assert "RankRuns of 11 ranks" in repr(run)
    assert type(open_run(tmp_path / "ranks" / "rank3")) is TrainingRun
    with pytest.raises(ResultsFileError, match=re.escape(str(tmp_path))):
        RankRuns(tmp_path)


def test_ranks_without_a_row_in_common_have_none(tmp_path: Path) -> None:
    run = write_ranks(tmp_path, [[(0, {LOSS: 1.0})], []], table="steps")
    assert len(run.steps) == len(run.layers) == 0
