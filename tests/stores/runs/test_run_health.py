"""Faults planted in a training run are found at their step and layer, and nothing else is."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope.errors import RequestError
from hookscope.file_analysis import weight_findings
from hookscope.file_analysis.run_findings import run_health
from hookscope.file_analysis.run_findings.loss_curve import find_spike
from hookscope.file_analysis.run_findings.run_health import check_run
from hookscope.results.health import Finding, Health
from hookscope.specs.checks import LEVELS, RUN_CHECKS, WEIGHT_CHECKS, RunThresholds
from hookscope.specs.command_options import CheckOptions, RunCheckOptions
from hookscope.stores.runs.run_info import RunEvent
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series
from tests.stores.runs.healthy_run import MODEL, TRAINED, TYPES, HealthyRun

NAN, INF = math.nan, math.inf
STEPS = 40
DEFAULT_SCHEDULE = (0, 1, 2, 4, 8, 16, 32, *range(50, 200, 50))


def health_of(run: HealthyRun, **options) -> Health:
    with tempfile.TemporaryDirectory() as folder:
        return check_run(run.write(Path(folder) / "run"), RunCheckOptions(**options))


def found(run: HealthyRun, **options) -> list[tuple[str, str, str, int | None]]:
    return [(f.level, f.check, f.layer, f.step) for f in health_of(run, **options).findings]


def only(run: HealthyRun, **options) -> Finding:
    [finding] = health_of(run, **options).findings
    return finding


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.floats(-2, 2), st.booleans())
def test_a_healthy_run_has_no_finding_at_any_scale(seed: int, power: float, every: bool) -> None:
    steps = STEPS if every else 200
    sampled = None if every else DEFAULT_SCHEDULE
    assert found(HealthyRun(steps, sampled, seed, 10**power)) == []


@settings(max_examples=15)
@given(st.integers(0, STEPS - 1), st.sampled_from(list(TYPES)))
def test_the_first_output_that_is_not_finite_is_found(step: int, layer: str) -> None:
    names = list(TYPES)
    run = HealthyRun(STEPS).plant("loss", "value", NAN, range(step, STEPS))
    for name in names[names.index(layer) :]:
        run.plant(f"{name}/output", "nonfinite", 5, range(step, STEPS))
        run.plant(f"{name}/output.grad", "nonfinite", 5, range(step, STEPS))
    for name in TRAINED:
        run.plant(f"{name}/weight", "norm", NAN, range(step + 1, STEPS))
        run.plant(f"{name}/weight.grad", "nonfinite", 5, range(step, STEPS))
        run.plant(f"{name}/weight.update", "norm", NAN, range(step, STEPS))
    finding = next(f for f in health_of(run).findings if f.check == "nonfinite")
    assert (finding.layer, finding.step, finding.level) == (layer, step, "error")
    assert (finding.measured, finding.threshold) == (5, 0)
    assert "5 entries of its output are not finite" in finding.message


@settings(max_examples=15)
@given(st.integers(0, STEPS - 1), st.sampled_from(list(TYPES)))
def test_the_gradient_with_which_the_backward_pass_went_wrong_is_found(
    step: int, layer: str
) -> None:
    names = list(TYPES)
    run = HealthyRun(STEPS)
    for name in names[: names.index(layer) + 1]:
        run.plant(f"{name}/output.grad", "nonfinite", 7, step)
        if name in TRAINED:
            run.plant(f"{name}/weight.grad", "nonfinite", 7, step)
    assert found(run) == [("error", "nonfinite", layer, step)]
    assert "gradient at its output" in only(run).message


def test_the_backward_of_a_layer_is_found_by_the_gradient_of_its_weight() -> None:
    run = HealthyRun().plant("conv2/weight.grad", "nonfinite", 1, 9)
    run.plant("conv1/output.grad", "nonfinite", 4, 9)
    assert found(run) == [("error", "nonfinite", "conv2", 9)]
    assert only(run).message.endswith("1 entry")


@pytest.mark.parametrize("value", [NAN, INF])
def test_an_update_that_is_not_finite_comes_from_the_optimizer(value: float) -> None:
    run = HealthyRun().plant("conv2/weight.update", "norm", value, 9)
    run.plant("conv2/weight", "norm", NAN, range(10, STEPS))
    run.plant("conv2/output", "nonfinite", 4, range(10, STEPS))
    run.plant("loss", "value", NAN, range(10, STEPS))
    finding = next(f for f in health_of(run).findings if f.check == "nonfinite")
    assert (finding.layer, finding.step) == ("conv2", 9)
    assert "eps" in finding.hint


def test_between_samples_the_loss_says_the_step_and_the_weights_do_not_hide_it() -> None:
    run = HealthyRun(200, DEFAULT_SCHEDULE).plant("loss", "value", NAN, range(37, 200))
    run.plant("conv1/weight", "norm", NAN, range(50, 200))
    run.plant("conv1/output", "nonfinite", 4, range(50, 200))
    finding = health_of(run, only="nonfinite").findings[0]
    assert (finding.layer, finding.step) == ("", 37)
    assert "--stop-on nan" in finding.hint


def test_weights_that_became_bad_between_samples_are_named_with_the_last_good_step() -> None:
    run = HealthyRun(200, DEFAULT_SCHEDULE).plant("conv2/weight", "norm", NAN, range(50, 200))
    run.plant("conv2/output", "nonfinite", 4, range(50, 200)).remove("loss", "value")
    finding = only(run)
    assert (finding.layer, finding.step) == ("conv2", 50)
    assert "weight" in finding.message and "step 32" in finding.message


def test_a_loss_function_is_to_blame_if_all_outputs_are_finite() -> None:
    run = HealthyRun().plant("loss", "value", INF, 9).plant("fc/output.grad", "nonfinite", 2, 9)
    finding = only(run)
    assert (finding.layer, finding.step) == ("", 9)
    assert "the loss is infinite" in finding.message


def test_what_a_script_was_stopped_at_says_more_than_the_samples() -> None:
    run = HealthyRun(200, DEFAULT_SCHEDULE).plant("loss", "value", NAN, range(37, 200))
    event = RunEvent(37, "nan", "forward", "net", "conv2", 1, "NaN in output", "a.safetensors")
    with tempfile.TemporaryDirectory() as folder:
        path = run.write(Path(folder) / "run")
        RunWriter(path, run.info).add_event(event)
        [finding] = check_run(path, RunCheckOptions("nonfinite")).findings
    assert (finding.layer, finding.step, finding.message) == ("conv2", 37, "NaN in output")
    assert finding.hint == f"See {path / 'a.safetensors'}."


def scaled(run: HealthyRun, *skipped: int) -> HealthyRun:
    for step in range(run.info["steps"]):
        run.plant("loss_scale", "value", 65536, step)
        run.plant("loss_scale", "skipped", step in skipped, step)
    return run


def test_gradients_at_a_step_that_the_scaler_skipped_are_no_finding() -> None:
    def overflowing(*skipped: int) -> HealthyRun:
        run = scaled(HealthyRun(), *skipped).plant("gradients", "norm", INF, 9)
        run.plant("conv1/weight.update", "ratio", 0, 9).plant("loss", "value", INF, 9)
        for name in TYPES:
            run.plant(f"{name}/output.grad", "nonfinite", 7, 9)
        return run.plant("fc/weight.grad", "nonfinite", 7, 9)

    assert found(overflowing(9)) == []
    assert found(overflowing(8))[0] == ("error", "nonfinite", "", 9)
    bad_output = overflowing(9).plant("fc/output", "nonfinite", 1, 9)
    assert found(bad_output)[0][:4] == ("error", "nonfinite", "fc", 9)


def test_infinities_of_a_mask_are_a_note_and_others_that_stay_a_warning() -> None:
    always = HealthyRun().plant("relu2/output", "nonfinite", 4, range(STEPS))
    assert found(always) == [("note", "nonfinite", "relu2", 0)]
    assert health_of(always).ok
    later = HealthyRun().plant("relu2/output", "nonfinite", 4, range(11, STEPS))
    assert found(later) == [("warning", "nonfinite", "relu2", 11)]


@settings(max_examples=6)
@given(st.integers(16, 299), st.sampled_from(["loss", "gradients"]), st.integers(0, 100))
def test_a_spike_is_found_at_its_step(step: int, key: str, seed: int) -> None:
    run = HealthyRun(300, seed=seed).plant(key, "value" if key == "loss" else "norm", 1000.0, step)
    assert found(run, only="spike") == [("warning", "spike", "", step)]


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=400))
def test_spikes_are_those_of_a_plain_loop(values: list[float]) -> None:
    limits = RunThresholds(spike_deviations=2.0)
    spikes = []
    for n, value in enumerate(values):
        window = np.array(values[max(0, n - 128) : n], np.float64)
        if len(window) >= 16:
            mean = window.mean()
            if value > mean + 2 * window.std() + 1e-9 and value - mean > 0.1 * abs(mean) + 1e-9:
                spikes.append(n)
    spike = find_spike(np.array(values, np.float32), limits)
    assert (spike.position if spike else None) == (spikes[0] if spikes else None)
    assert (spike.spikes if spike else 0) == len(spikes)


def test_rounding_of_a_constant_loss_is_no_spike_and_values_that_are_not_finite_are_left() -> None:
    constant = np.full(100, 0.6931, np.float32)
    constant[50] += 1e-4
    assert find_spike(constant, RunThresholds()) is None
    constant[[3, 60]] = NAN, INF
    constant[70] = 10
    spike = find_spike(constant, RunThresholds())
    assert spike is not None and (spike.position, spike.spikes) == (70, 1)


def plant_everywhere(key: str, measure: str, value: float, **options) -> HealthyRun:
    return HealthyRun(**options).plant(key, measure, value, range(STEPS))


def flat_loss() -> HealthyRun:
    run = HealthyRun()
    for step in range(STEPS):
        run.plant("loss", "value", 2.3 + 0.001 * (step % 3), step)
    return run


def high_learning_rate() -> HealthyRun:
    run = HealthyRun()
    for name in TRAINED:
        run.plant(f"{name}/weight.update", "ratio", 1.0, range(3, STEPS))
    return run.plant("loss", "value", 900.0, range(5, STEPS))


def without_gradient(start: int) -> HealthyRun:
    run = HealthyRun().plant("conv2/weight.grad", "norm", 0, range(start, STEPS))
    return run.plant("conv2/bias.grad", "norm", 0, range(start, STEPS))


def gradients_of_all(norm: float, start: int) -> HealthyRun:
    run = HealthyRun()
    for name in TRAINED:
        for what in ("weight", "bias"):
            run.plant(f"{name}/{what}.grad", "norm", norm, range(start, STEPS))
    return run


def frozen() -> HealthyRun:
    run = HealthyRun()
    for what in ("weight", "bias"):
        for part in (".grad", ".update"):
            for measure in ("norm", "nonfinite", "ratio"):
                run.remove(f"conv2/{what}{part}", measure)
    return run


def stopped(status: str, **changes) -> Callable[[], HealthyRun]:
    def run() -> HealthyRun:
        planted = HealthyRun()
        planted.info.update(status=status, **changes)
        return planted

    return run


def vanishing() -> HealthyRun:
    run = HealthyRun()
    for what in ("weight", "bias"):
        run.plant(f"conv1/{what}.grad", "norm", 1e-8, range(4, STEPS))
    return run


def growing(types: dict[str, str], rms: dict[str, float]) -> HealthyRun:
    """A run of these layers in execution order, whose outputs have this rms, else 1."""
    run = HealthyRun(3)
    model = run.info["models"][0]
    model["layers"] = [{"name": name, "type": kind} for name, kind in types.items()]
    run.tables["layers"] = {
        step: {Series(MODEL, f"{name}/output", "rms"): rms.get(name, 1.0) for name in types}
        for step in range(3)
    }
    return run


def test_outputs_that_are_normalized_on_the_way_do_not_grow() -> None:
    names = [f"block{n}.{part}" for n in range(4) for part in ("conv", "norm", "relu")]
    kinds = {"conv": "Conv2d", "norm": "BatchNorm2d", "relu": "LeakyReLU"}
    types = {name: kinds[name.split(".")[1]] for name in names}
    rms = {f"block{n}.conv": 0.01 * 10**n for n in range(4)}
    assert found(growing(types, rms)) == []
    without = {name: kind for name, kind in types.items() if kind != "BatchNorm2d"}
    assert found(growing(without, rms)) == [("warning", "growth", "block3.conv", 0)]


def test_residual_blocks_grow_although_there_is_a_norm_in_each() -> None:
    types = {}
    for n in range(6):
        types |= {f"{n}.norm": "LayerNorm", f"{n}.fc": "Linear", f"{n}": "Block"}
    rms = {f"{n}": 3.0**n for n in range(6)}
    assert found(growing(types, rms)) == [("warning", "growth", "5", 0)]


def twice(value: float) -> HealthyRun:
    run = HealthyRun()
    for name in ("conv2", "conv3"):
        run.plant(f"{name}/weight.update", "ratio", value, range(STEPS))
    return run.plant("conv3/weight.update", "ratio", value * 1.5, range(STEPS))


FAULTS = {
    "flat loss": (flat_loss, ("warning", "loss", "", 0)),
    "learning rate": (high_learning_rate, ("warning", "learning-rate", "", 3)),
    "large updates": (lambda: twice(0.05), ("note", "updates", "conv3", 0)),
    "small updates": (lambda: twice(1e-7), ("note", "updates", "conv2", 0)),
    "dead": (
        lambda: HealthyRun().plant("relu2/output", "dead", 0.9, range(9, STEPS)),
        ("warning", "dead", "relu2", 9),
    ),
    "vanishing": (vanishing, ("warning", "vanishing", "conv1", 4)),
    "growth": (
        lambda: plant_everywhere("conv3/output", "rms", 50),
        ("warning", "growth", "conv3", 0),
    ),
    "overflow": (
        lambda: scaled(HealthyRun()).plant("conv3/output", "max", 6e4, 12),
        ("warning", "overflow", "conv3", 12),
    ),
    "unused": (lambda: without_gradient(20), ("warning", "unused", "conv2", 20)),
    "detached": (lambda: without_gradient(0), ("warning", "unused", "conv2", 0)),
    "frozen": (frozen, ("note", "frozen", "conv2", 0)),
    "skipped": (
        lambda: scaled(HealthyRun(100), *range(50, 100, 3)),
        ("warning", "skipped", "", 50),
    ),
    "adam": (
        lambda: HealthyRun().plant("fc/weight", "adam_rms", 5, range(12, 20)),
        ("warning", "adam", "fc", 12),
    ),
    "incomplete": (stopped("finished", incomplete="no space"), ("warning", "incomplete", "", None)),
    "failed": (stopped("failed", exit_status=1), ("error", "unfinished", "", STEPS - 1)),
    "interrupted": (stopped("interrupted"), ("warning", "unfinished", "", STEPS - 1)),
    "stopped": (stopped("stopped"), ("warning", "unfinished", "", STEPS - 1)),
    "running": (stopped("running"), ("note", "unfinished", "", STEPS - 1)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_at_its_step_and_layer(name: str) -> None:
    build, expected = FAULTS[name]
    findings = health_of(build()).findings
    seen = [(f.level, f.check, f.layer, f.step) for f in findings]
    assert expected in seen
    allowed = {"learning rate": {"spike", "loss", "updates"}}.get(name, set())
    assert {f.check for f in findings} - allowed == {expected[1]}


def test_a_model_that_never_has_a_gradient_is_found() -> None:
    finding = only(gradients_of_all(0, 0))
    assert (finding.check, finding.layer, finding.step) == ("unused", "conv1", 0)
    assert finding.others == ("conv2", "conv3", "fc")


@pytest.mark.parametrize(
    "run",
    [
        lambda: scaled(HealthyRun(100), 0, 1, 2, 3, 60),  # a few skips are normal
        lambda: scaled(HealthyRun(45), *range(10)),  # the scale starts high
        lambda: HealthyRun().plant("conv3/output", "max", 6e4, 12),  # float32 has room
        lambda: HealthyRun().plant("relu1/output", "dead", 0.9, 9),  # alive again
        lambda: without_gradient(38),  # two of the last eight
        lambda: HealthyRun().plant("fc/weight.grad", "norm", 0, 0),  # starts with zeros
        lambda: plant_everywhere("conv2/bias.grad", "norm", 1e-30),  # before a normalization
        lambda: HealthyRun().plant("fc/weight", "adam_rms", 5, 12),  # not for long
        lambda: plant_everywhere("conv2/bias.update", "ratio", 0.5),  # a bias starts at 0
        lambda: gradients_of_all(0, 20),  # a loss of 0
        lambda: HealthyRun(sampled=(0, 1)).plant("conv2/weight.grad", "norm", 0, (0, 1)),
        lambda: gradients_of_all(1e-9, 10),
    ],
)
def test_what_is_normal_is_no_finding(run: Callable[[], HealthyRun]) -> None:
    assert found(run()) == []


def test_a_small_batch_has_units_that_are_zero_by_chance() -> None:
    run = plant_everywhere("relu1/output", "dead", 0.9).plant("batch", "samples", 4, range(STEPS))
    assert found(run) == []
    run.plant("relu2/output", "dead", 1.0, range(5, STEPS))
    assert found(run) == [("warning", "dead", "relu2", 5)]


def test_thresholds_that_have_an_option_are_applied() -> None:
    dead = plant_everywhere("relu1/output", "dead", 0.3)
    assert found(dead) == []
    assert found(dead, dead=0.2) == [("warning", "dead", "relu1", 0)]
    faint = HealthyRun()
    for what in ("weight", "bias"):
        faint.plant(f"conv1/{what}.grad", "norm", 1e-5, range(STEPS))
    assert found(faint) == []
    assert found(faint, vanishing=0.1) == [("warning", "vanishing", "conv1", 0)]
    assert found(faint, floor=1e-4) == [("warning", "vanishing", "conv1", 0)]
    assert only(faint, floor=1e-4).threshold == 1e-4


def test_competing_losses_are_not_judged() -> None:
    run = flat_loss()
    run.info["optimizers"] *= 2
    health = health_of(run)
    assert health.findings == () and "compete" in health.unmade["loss"]


def test_layers_of_two_models_are_told_apart() -> None:
    run = HealthyRun()
    other = HealthyRun(model="critic").plant("conv2/output", "nonfinite", 2, range(6, STEPS))
    for step, row in other.tables["layers"].items():
        run.tables["layers"][step] |= row
    run.plant("loss", "value", NAN, range(6, STEPS))
    [finding] = health_of(run, only="nonfinite").findings
    assert (finding.model, finding.layer, finding.step) == ("critic", "conv2", 6)


def test_each_rank_is_judged_and_named(tmp_path: Path) -> None:
    for rank in range(3):
        run = HealthyRun(seed=rank)
        run.info["rank"] = rank
        if rank:
            run.plant("relu2/output", "dead", 1, range(9, STEPS))
        if rank == 2:
            run.plant("conv1/output.grad", "nonfinite", 1, 4)
        run.write(tmp_path / "run" / f"rank{rank}")
    health = check_run(tmp_path / "run", RunCheckOptions())
    seen = [(f.check, f.layer, f.step, f.ranks) for f in health.findings]
    assert seen == [("nonfinite", "conv1", 4, (2,)), ("dead", "relu2", 9, (1, 2))]
    assert health.metadata["run"]["ranks"] == [0, 1, 2]


def test_a_run_without_layers_says_what_was_not_checked() -> None:
    health = health_of(HealthyRun(sampled=()))
    assert health.findings == ()
    assert {"dead", "updates"} <= health.unmade.keys()
    assert "spike" in health.checks


def test_findings_come_in_the_order_of_levels_and_checks() -> None:
    run = frozen().plant("relu2/output", "dead", 1, range(9, STEPS))
    run.plant("conv1/output.grad", "nonfinite", 1, 4)
    levels = [f.level for f in health_of(run).findings]
    assert levels == sorted(levels, key=LEVELS.index) == ["error", "warning", "note"]


def test_every_check_has_a_function_and_a_source_of_each_threshold() -> None:
    assert list(run_health.FINDERS) == list(RUN_CHECKS)
    assert list(weight_findings.FINDERS) == list(WEIGHT_CHECKS)
    assert RunThresholds.__doc__ is not None
    for name in RunThresholds().to_json():
        assert f"        {name}: " in RunThresholds.__doc__


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RunCheckOptions("nan"), "nan"),
        (lambda: CheckOptions("spike"), "spike"),
        (lambda: RunCheckOptions(skip="spikes"), "Did you mean spike"),
        (lambda: RunCheckOptions(dead=1.5), "1.5"),
        (lambda: RunCheckOptions(floor=0), "floor"),
    ],
)
def test_wrong_options_are_errors(build: Callable[[], object], message: str) -> None:
    with pytest.raises(RequestError) as error:
        build()
    assert message in str(error.value)
