"""Gradients that are NaN, of a wrong shape, or not reduced: the script marks what is named."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.training import failing_gradients as tables
from tests.training.failing_steps import HEAD
from tests.training.forked import Ended
from tests.training.test_failed_backward import code_in, marked_line
from tests.training.test_several_processes import Launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks with torch imported"),
]

STOP = ("--stop-on", "nan,inf")


def story_of(ended: Ended, other: Sequence[str] = ("recorded", "stopped the script")) -> str:
    """What is said about the failure."""
    lines = [line.removeprefix("hookscope: ") for line in ended.messages]
    return "\n".join(line for line in lines if not line.startswith(tuple(other)))


def called_line(script: str) -> int:
    lines = script.splitlines()
    return 1 + next(n for n, line in enumerate(lines) if line.endswith("# called"))


# NaN


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", tables.NAN_SCRIPTS)
def test_the_line_is_named_where_a_gradient_becomes_nan(watched, name: str) -> None:
    script = tables.NAN_SCRIPTS[name]
    ended = watched(script, *STOP)
    assert ended.status == 1
    story = story_of(ended)
    assert f"script.py:{marked_line(script)}" in story.splitlines()[0], ended.stderr
    assert ("Suggestion: " in story) == (name not in tables.NAN_WITHOUT_CHANGE), story
    assert "Tried" not in story
    assert "net.a.weight" in story


def test_the_error_of_anomaly_mode_is_explained(watched) -> None:
    script = tables.NAN_SCRIPTS["power"]
    anomaly = "torch.autograd.set_detect_anomaly(True)\n"
    ended = watched(script.replace(HEAD, HEAD + anomaly))
    assert ended.status == 1
    assert "returned nan values in its 0th output" in ended.stderr
    first = story_of(ended).splitlines()[0]
    assert first.startswith("PowBackward0") and f"script.py:{marked_line(script) + 1}" in first


def test_the_line_of_anomaly_mode_is_the_programs_without_an_optimizer(watched) -> None:
    script = HEAD + dedent("""\
        torch.autograd.set_detect_anomaly(True)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
            def forward(self, x):
                return (self.a(x) * 0).sqrt()  # here
        Net()(torch.ones(2, 4)).sum().backward()
    """)
    first = story_of(watched(script)).splitlines()[0]
    assert f"script.py:{marked_line(script)}" in first


def test_the_change_that_is_suggested_helps(watched) -> None:
    script = tables.NAN_SCRIPTS["log"]
    [change] = re.findall(r"with `(.+)` there", story_of(watched(script, *STOP)))
    assert change == "torch.log(x.clamp_min(1e-12))"
    mended = watched(script.replace("torch.log(x)", change), *STOP)
    assert (mended.status, story_of(mended)) == (0, "")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", tables.FINITE)
def test_finite_gradients_have_no_story(watched, name: str) -> None:
    ended = watched(tables.FINITE[name], *STOP)
    assert (ended.status, story_of(ended)) == (0, ""), ended.stderr


def test_nothing_of_it_is_imported_while_gradients_are_finite(watched) -> None:
    counted = "    print([n for n in __import__('sys').modules if 'backward_failures' in n])\n"
    script = tables.FINITE["finite 0"]
    step = "    loss.backward()\n"
    ended = watched(script.replace(step, counted + step))
    assert (ended.status, ended.stdout) == (0, "[]\n" * 3)


# The shapes of a custom backward


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", tables.FUNCTIONS)
def test_the_function_its_argument_and_its_caller_are_named(watched, name: str) -> None:
    script, part = tables.FUNCTIONS[name]
    ended = watched(script)
    assert ended.status == 1
    story = story_of(ended)
    assert f"Product.backward (script.py:{marked_line(script)})" in story, ended.stderr
    assert part in story
    assert f"in script.py:{called_line(script)}" in story
    assert "Suggestion: " in story and "Tried: " not in story


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", tables.CORRECT_FUNCTIONS)
def test_a_correct_function_has_no_story(watched, name: str) -> None:
    ended = watched(tables.CORRECT_FUNCTIONS[name])
    assert (ended.status, story_of(ended)) == (0, ""), ended.stderr


# DistributedDataParallel


def assert_is_explained(story: str, name: str, script: str) -> None:
    assert tables.PARALLEL_STORIES[name] in story
    if "# here" in script:
        assert f"script.py:{marked_line(script)}" in story
    assert "Suggestion: " in story
    if "twice" not in story:
        assert "2 parameters got no gradient in this process: other.weight, other.bias." in story


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", tables.PARALLEL)
def test_parameters_that_are_not_reduced_are_named(watched, name: str) -> None:
    script = tables.parallel(name)
    ended = watched(script)
    assert ended.status == 1
    assert_is_explained(story_of(ended), name, script)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", tables.CORRECT_PARALLEL)
def test_a_correct_step_of_ddp_has_no_story(watched, name: str) -> None:
    ended = watched(tables.parallel(name))
    assert (ended.status, story_of(ended)) == (0, ""), ended.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["not_called", "not_in_the_loss", "two_passes"])
def test_two_processes_tell_the_story(
    bare_environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    script = tables.parallel(name, tables.TOGETHER)
    (tmp_path / "script.py").write_text(script)
    words = ("-m", "hookscope", "run", "script.py")
    status, _, said = Launch(tmp_path, bare_environment, *words).end()
    assert status == 1
    assert_is_explained(said, name, script)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tables.CORRECT_PARALLEL)
def test_two_correct_processes_tell_nothing(
    bare_environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "script.py").write_text(tables.parallel(name, tables.TOGETHER))
    words = ("-m", "hookscope", "run", "script.py")
    status, _, said = Launch(tmp_path, bare_environment, *words).end()
    assert status == 0
    assert said.splitlines() == [line for line in said.splitlines() if "recorded 3 steps" in line]


# The pages


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("nan-in-gradients", STOP),
        ("invalid-gradient-at-index", ()),
        ("expected-to-have-finished-reduction", ()),
    ],
)
def test_the_page_shows_what_is_said(watched, page: str, options, repo: Path) -> None:
    text = (repo / "docs" / "questions" / f"{page}.md").read_text()
    code = code_in(text)
    shown = re.findall(r"^    hookscope: (.+)\n", text, re.MULTILINE)
    assert len(shown) in (3, 4)
    ended = watched(code.replace('dist.init_process_group("gloo")', tables.ALONE), *options)
    assert story_of(ended).replace("script.py", "train.py").splitlines() == shown
