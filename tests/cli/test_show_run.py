"""``hookscope show`` and ``load`` of a training run: its summary, its layers, single curves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hookscope
from hookscope.file_analysis.run_summary import RunSummary, read_key_curves
from hookscope.stores.runs.rank_runs import RankRuns
from hookscope.stores.runs.run_info import RunEvent
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import SKIPPED, Series
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views import display
from hookscope.views.text.text_table import TextOptions
from tests.conftest import REPO, Run
from tests.stores.runs.conftest import LOSS, model_info, run_info, write_run

SAMPLE = f"{REPO}/sample_models/run"


def lines_of(path: str | Path, **options) -> str:
    return "\n".join(line.plain for line in display.text(TrainingRun(path), TextOptions(**options)))


def test_a_row_has_the_last_values_of_a_layer(run: Run) -> None:
    header, *rows, legend = run("show", SAMPLE).stdout.splitlines()[5:]
    assert legend.startswith("Values of step 32.")
    table = {row.split()[0]: re.split(r"\s{2,}", row) for row in rows}
    assert list(table) == ["fc1", "relu", "fc2", "(model)"]
    titles = re.split(r"\s{2,}", header)
    sample = TrainingRun(SAMPLE)
    for title, key, measure in (
        ("rms", "fc2/output", "rms"),
        ("max", "fc2/output", "max"),
        ("zeros", "fc2/output", "zeros"),
        ("grad norm", "fc2/output.grad", "norm"),
        ("weight norm", "fc2/weight", "norm"),
        ("weight grad", "fc2/weight.grad", "norm"),
        ("update ratio", "fc2/weight.update", "ratio"),
    ):
        value = float(sample.curve(key, measure).values[-1])
        assert table["fc2"][titles.index(title)] == f"{value:.6g}", title
    assert float(table["relu"][titles.index("dead")]) == 3 / 16


def test_layers_are_narrowed_sorted_and_cut(run: Run) -> None:
    def layers(*words: str) -> list[str]:
        done = run("show", SAMPLE, *words)
        assert done.rc == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()[6:-1]]  # less the legend

    assert layers("--layer", "fc*") == ["fc1", "fc2"]
    assert layers("--layer", "!fc*", "--layer", "(model)") == ["(model)"]
    assert layers("--sort", "-rms", "--top", "2") == ["relu", "fc2"]
    assert " 0.66 " in run("show", SAMPLE, "--precision", "2").stdout


def test_a_key_shows_its_values_step_by_step(run: Run) -> None:
    done = run("show", SAMPLE, "fc2/weight.grad", "loss")
    curve = TrainingRun(SAMPLE).curve("fc2/weight.grad", "norm")
    first, second = done.stdout.split("\n\n")
    title, header, *rows = first.splitlines()
    assert (title, header.split()) == ("fc2/weight.grad of model", ["step", "norm", "nonfinite"])
    assert [row.split() for row in rows] == [
        [str(step), f"{value:.6g}", "0"]
        for step, value in zip(curve.steps, curve.values.tolist(), strict=True)
    ]
    assert len(second.splitlines()) == 42


def test_json_has_the_run_or_the_curves(run: Run) -> None:
    document = json.loads(run("show", SAMPLE, "--json", "--layer", "fc*").stdout)
    assert (document["command"], document["recording"], document["curves"]) == ("show", None, None)
    assert document["run"]["status"] == "finished" and document["run"]["loss"]["step"] == 39
    assert [layer["layer"] for layer in document["run"]["layer_values"]] == ["fc1", "fc2"]
    document = json.loads(run("show", SAMPLE, "fc2", "--json").stdout)
    curves = {curve["key"]: curve["measures"] for curve in document["curves"]}
    assert document["run"] is None and "fc2/weight.update" in curves
    curve = TrainingRun(SAMPLE).curve("fc2/output", "rms")
    assert curves["fc2/output"]["rms"]["steps"] == curve.steps.tolist()
    assert curves["fc2/output"]["rms"]["values"] == curve.values.tolist()


def test_the_layer_of_another_file_is_a_key(run: Run) -> None:
    for file in ("five.safetensors", "digits.safetensors"):
        as_key, as_option = (
            run("show", f"{REPO}/sample_models/{file}", *words)
            for words in (["conv1"], ["--layer", "conv1"])
        )
        assert as_option == as_key and as_key.rc == 0
    done = run("show", f"{REPO}/sample_models/features", "--layer", "conv1")
    assert done.rc == 2 and "--layer conv1" in done.stderr


def test_what_went_wrong_is_said(tmp_path: Path) -> None:
    rms, bad = Series("Net", "fc/output", "rms"), Series("Net", "fc/output", "nonfinite")
    layers = [(0, {rms: 1.0, bad: 0.0}), (7, {rms: 2.0, bad: 3.0}), (9, {rms: 3.0, bad: 3.0})]
    about = {
        "incomplete": "The disk is full.",
        "unwatched": [{"what": "Net.head", "reason": "compiled"}],
        "every": 7,
        "models": [model_info(fc="Linear")],
    }
    write_run(tmp_path, [(n, {LOSS: 1.0}) for n in range(10)], layers, **about)
    writer = RunWriter(tmp_path, run_info(steps=10, **about))
    writer.add_event(
        RunEvent(9, "nan", "forward", "Net", "fc", 2, "NaN in output", "a.safetensors")
    )
    text = lines_of(tmp_path, width=400)
    assert "train.py --epochs 3: running, or killed." in text and "every 7 steps" in text
    assert "from step 7" in text and "▁▅█" in text
    assert "at step 9 (forward, layer fc, call 2): NaN in output. See" in text
    assert f"See {tmp_path / 'a.safetensors'}." in text
    assert "The disk is full." in text
    assert "Not watched: Net.head (compiled)." in text


def test_layers_are_in_execution_order_although_parameters_were_measured_first(
    tmp_path: Path,
) -> None:
    names = [Series("Net", key, "norm") for key in ("head/weight", "body/weight")]
    outputs = [Series("Net", f"{layer}/output", "rms") for layer in ("body", "act", "head", ".")]
    first, second = dict.fromkeys(names, 1.0), dict.fromkeys([*names, *outputs], 1.0)
    write_run(tmp_path, [(n, {LOSS: 1.0}) for n in range(2)], [(0, first), (1, second)])
    layers = RunSummary.of(TrainingRun(tmp_path)).layers
    assert [layer.layer for layer in layers] == ["body", "act", "head", "."]
    assert [layer.rms for layer in layers] == [1.0] * 4


def test_steps_that_the_scaler_skipped_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, [(n, {LOSS: 1.0, SKIPPED: n in (0, 2, 3)}) for n in range(5)], [])
    assert "skipped 3 steps" in lines_of(tmp_path)
    assert RunSummary.of(TrainingRun(tmp_path)).to_json()["skipped_steps"] == 3


def test_ranks_are_combined_and_an_early_end_is_said(run: Run, tmp_path: Path) -> None:
    for rank, steps in enumerate((4, 2)):
        rows = [(n, {LOSS: 1.0 + 2 * rank}) for n in range(steps)]
        write_run(tmp_path / "ddp" / f"rank{rank}", rows, rank=rank, world_size=2)
    text = run("show", tmp_path / "ddp").stdout
    assert "Loss 2.000 at step 0, 2.000 at step 1." in text and "2 ranks." in text
    assert "Rank 1 ended after 2 steps, earlier than others." in text
    assert "Loss 3.000 at step 0" in run("show", tmp_path / "ddp" / "rank1").stdout
    assert isinstance(hookscope.load(tmp_path / "ddp"), RankRuns)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_summary_and_a_curve_fit_the_terminal(width: int) -> None:
    for ascii in (False, True):
        options = TextOptions(width=width, ascii=ascii)
        summary = lines_of(SAMPLE, width=width, ascii=ascii)
        [view] = read_key_curves(TrainingRun(SAMPLE), ["loss"])
        curve = "\n".join(line.plain for line in display.text(view, options))
        for text in (summary, curve):
            assert max(map(len, text.splitlines())) <= width
            assert text.isascii() or not ascii
        assert "last 20 of 40 steps" in " ".join(curve.split())
        assert curve.count("*" if ascii else "•") >= 20
        assert ("trend" in summary) == (width >= 80)


def test_a_notebook_shows_the_table() -> None:
    html = hookscope.load(SAMPLE)._repr_html_()
    assert "<td" in html and "fc1" in html and "finished" in html
    assert "fc1" in RunSummary.of(TrainingRun(SAMPLE))._repr_html_()


def test_the_sample_is_what_its_tool_writes(tmp_path: Path) -> None:
    from tools.sample_run import train

    train(tmp_path)
    sample, again = TrainingRun(SAMPLE), TrainingRun(tmp_path)
    assert (sample.info, sample.names) == (again.info, again.names)
    for ours, theirs in ((sample.steps, again.steps), (sample.layers, again.layers)):
        assert ours.series == theirs.series
        matrices = (table.matrix(table.series) for table in (ours, theirs))
        np.testing.assert_allclose(*matrices, rtol=1e-4, atol=1e-6)  # another processor
