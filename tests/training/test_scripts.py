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
    ("command_line -e 3", 18, "model"),
    ("data_loader fork", 12, "model"),
    ("data_loader spawn", 12, "model"),
    ("structures", 5, "model teacher"),
    ("grad_scaler", 9, "model"),
    ("grad_scaler fused clip", 9, "model"),
    ("accumulation", 5, "model head"),
    ("gan", 5, "net_d net_g"),
    ("lbfgs", 5, "model"),
    ("compiled eager", 8, "model head"),
    ("compiled aot_eager", 8, "model head"),
    pytest.param("compiled inductor", 8, "model head", marks=pytest.mark.exhaustive),
    ("checkpointing reentrant", 6, "model"),
    ("checkpointing", 6, "model"),
    pytest.param("hf_trainer", 6, "model", marks=needs_trainer),
    ("saved_ema", 4, "model ema"),
    ("optimizer_in_backward", 6, "model"),
    ("fine_tuning", 8, "model"),
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

    def run(words: str, options: str = "", folder: Path | None = None) -> Finished:
        name, *arguments = words.split()
        script = SCRIPTS / f"{name}.py"
        work = folder or tmp_path_factory.mktemp(name)
        settings = environment | {"TORCHINDUCTOR_CACHE_DIR": str(work)}
        if not options:
            return warm_process.run(arguments, work, settings, "", 300, script)
        return warm_process.run([*options.split(), str(script), *arguments], work, settings)

    return run


@pytest.fixture(scope="module")
def plain(start: Start) -> Start:
    """What a script does without hookscope; run once."""
    return cache(start)


def without_times(text: str) -> str:
    """Return lines of torch's log without date, time and process: ``W1124 06:33:36.36 5889``."""
    return re.sub(r"^([VIWE])\d{4} [\d:.]+ \d+ ", r"\1 ", text, flags=re.MULTILINE)


def without_ours(stderr: str) -> str:
    return re.sub("(?m)^hookscope: .*\n", "", stderr)


@pytest.mark.slow
@pytest.mark.sampled(2)  # all of the second kind are exhaustive
@pytest.mark.parametrize(("words", "steps", "models"), CASES)
@pytest.mark.parametrize(
    "options", ["--every 1", pytest.param("", marks=pytest.mark.exhaustive)], ids=["each", "some"]
)
def test_a_script_that_is_watched_does_the_same(
    plain: Start, start: Start, tmp_path: Path, options: str, words: str, steps: int, models: str
) -> None:
    ours = start(words, f"run {options} -o run", tmp_path)
    theirs = plain(words)
    assert theirs.rc in (0, 3), theirs.stderr
    assert (ours.rc, ours.stdout) == (theirs.rc, theirs.stdout)
    assert without_times(without_ours(ours.stderr)) == without_times(theirs.stderr)
    run = TrainingRun(tmp_path / "run")
    assert run.info["incomplete"] == ""
    assert run.info["steps"] == len(run.steps) == steps
    assert {model["name"] for model in run.info["models"]} == set(models.split())
    assert ".grad" in {Path(series.what).suffix for series in run.layers.series}


@pytest.mark.slow
def test_a_process_of_its_own_ends_as_that_of_python(environment, tmp_path: Path) -> None:
    """Tracebacks are the same; after its own, a failed backward pass is explained."""
    command = ("-m", "hookscope", "run", "--every", "1", "-o", "run")
    words = [str(SCRIPTS / "command_line.py"), "--fail"]
    theirs, ours = both(words, tmp_path, environment, ours=command)
    assert theirs.status == 1
    assert replace(ours, stderr=without_ours(ours.stderr.decode()).encode()) == theirs
    run = TrainingRun(tmp_path / "run")
    assert (run.info["incomplete"], run.info["exit_status"]) == ("", 1)
    assert len(run.layers) > 1
