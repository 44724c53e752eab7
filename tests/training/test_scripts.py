"""Training scripts behave under ``hookscope run`` as under ``python``, to the last bit.

Most run in forks of a process that has imported torch, which takes as long as ten of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from hookscope.stores.runs.training_run import TrainingRun
from tests.training.oracle import both
from tools.warm_process import Finished, WarmProcess

SCRIPTS = Path(__file__).with_name("scripts")

needs_trainer = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="the Trainer of transformers needs accelerate",
)

# Each script with its arguments, the number of its steps, and the models that are found.
CASES = [
    ("plain_loop", 12, "model"),
    ("functions", 18, "model"),
    ("arguments --epochs 3 -l 0.2", 3, "model"),
    ("data_loader fork", 12, "model"),
    ("data_loader spawn", 12, "model"),
    ("autocast", 8, "model"),
    ("grad_scaler", 9, "model"),
    ("grad_scaler fused", 9, "model"),
    ("grad_scaler clip", 9, "model"),
    ("grad_scaler fused clip", 9, "model"),
    ("accumulation", 5, "model head"),
    ("gan", 10, "net_d net_g"),
    ("lbfgs", 5, "model"),
    ("compiled eager", 8, "model head"),
    ("compiled aot_eager", 8, "model head"),
    pytest.param("compiled inductor", 8, "model head", marks=pytest.mark.exhaustive),
    ("checkpointing reentrant", 6, "model"),
    ("checkpointing", 6, "model"),
    pytest.param("hf_trainer", 6, "model", marks=needs_trainer),
    ("saved_ema", 4, "model ema"),
    ("manual_sgd", 10, "model"),
    ("optimizer_in_backward", 6, "model"),
    ("fine_tuning", 8, "model"),
    ("distillation", 8, "student teacher"),
    ("late_loss_network", 7, "model Sequential"),
    ("two_phases", 125, "model"),
    ("shared_module", 8, "model"),
    ("weight_norm", 8, "model"),
    ("sequences", 5, "model"),
    ("exported", 4, "model"),
]
Start = Callable[..., Finished]


@pytest.fixture(scope="module")
def environment(bare_environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a home of its own, in which a script has the same numbers each time."""
    home = str(tmp_path_factory.mktemp("home"))
    return bare_environment | {"HOME": home, "XDG_CACHE_HOME": home}


@pytest.fixture(scope="module")
def start(warm_process: WarmProcess, environment, tmp_path_factory) -> Start:
    """Start ``python SCRIPT ARGUMENTS``, or the same after ``hookscope run OPTIONS``."""

    def run(words: str, options: str | None = None, folder: Path | None = None) -> Finished:
        name, *arguments = words.split()
        script = SCRIPTS / f"{name}.py"
        work = folder or tmp_path_factory.mktemp(name)
        settings = environment | {"TORCHINDUCTOR_CACHE_DIR": str(work)}
        if not options:
            return warm_process.run(arguments, work, settings, "", 300, script)
        command = [*options.split(), str(script), *arguments]
        return warm_process.run(command, work, settings, "", 300)

    return run


@pytest.fixture(scope="module")
def plain(start: Start) -> Start:
    """What a script does without hookscope; run once."""
    return cache(start)


def without_ours(stderr: str) -> str:
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("hookscope: "))


def assert_same(ours: Finished, theirs: Finished) -> None:
    assert theirs.rc in (0, 3), theirs.stderr
    assert ours.stdout == theirs.stdout
    assert without_times(without_ours(ours.stderr)) == without_times(theirs.stderr)
    assert ours.rc == theirs.rc


def without_times(text: str) -> str:
    """Return lines of torch's log without date, time and process: ``W1124 06:33:36.36 5889``."""
    return re.sub(r"^([VIWE])\d{4} [\d:.]+ \d+ ", r"\1 ", text, flags=re.MULTILINE)


def assert_watched(folder: Path, steps: int, models: str) -> None:
    """That watching did not end with a fault, and found what there is to find."""
    run = TrainingRun(folder)
    assert run.info["incomplete"] == ""
    assert run.info["steps"] == steps
    assert {model["name"] for model in run.info["models"]} == set(models.split())
    assert len(run.steps) == steps
    assert ".grad" in {Path(series.what).suffix for series in run.layers.series}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("words", "steps", "models"), CASES)
def test_a_script_that_is_watched_at_each_step_does_the_same(
    plain: Start, start: Start, tmp_path: Path, words: str, steps: int, models: str
) -> None:
    ours = start(words, "run --every 1 -o run", tmp_path)
    assert_same(ours, plain(words))
    assert_watched(tmp_path / "run", steps, models)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "steps", "models"), CASES)
def test_a_script_that_is_watched_at_some_steps_does_the_same(
    plain: Start, start: Start, tmp_path: Path, words: str, steps: int, models: str
) -> None:
    ours = start(words, "run -o run", tmp_path)
    assert_same(ours, plain(words))
    assert_watched(tmp_path / "run", steps, models)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("arguments --fail", 1),
        pytest.param("data_loader spawn", 0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_process_of_its_own_ends_as_that_of_python(
    environment, tmp_path: Path, words: str, status: int
) -> None:
    """Tracebacks are the same, and spawned workers import the script and not hookscope."""
    name, *arguments = words.split()
    command = ("-m", "hookscope", "run", "--every", "1", "-o", "run")
    script = str(SCRIPTS / f"{name}.py")
    theirs, ours = both([script, *arguments], tmp_path, environment, ours=command)
    assert theirs.status == status
    # After its traceback, a failed backward pass is explained.
    shown = b"".join(x for x in ours.stderr.splitlines(True) if not x.startswith(b"hookscope: "))
    assert replace(ours, stderr=shown) == theirs
    run = TrainingRun(tmp_path / "run")
    assert (run.info["incomplete"], run.info["exit_status"]) == ("", status)
    assert len(run.layers) > 1
