"""Gradients that are NaN, of a wrong shape, or not reduced: the script marks what is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.training import failing_gradients as tables
from tests.training.failing_steps import HEAD
from tests.training.forked import FORKS
from tests.training.test_failed_backward import code_in, marked_line, story_of
from tests.training.test_several_processes import Launch

pytestmark = FORKS

STOP = ("--stop-on", "nan,inf")


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


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_the_error_of_anomaly_mode_is_explained(watched, has_optimizer: bool) -> None:
    script = tables.NAN_SCRIPTS["power"]
    if not has_optimizer:
        script = re.sub(r"(?m)^optimizer =.*\n|^ +optimizer\..*\n", "", script)
    script = script.replace(HEAD, f"{HEAD}torch.autograd.set_detect_anomaly(True)\n")
    ended = watched(script)
    assert ended.status == 1
    first = story_of(ended).splitlines()[0]
    assert "PowBackward0" in first and f"script.py:{marked_line(script)}" in first


def test_the_change_that_is_suggested_helps(watched) -> None:
    script = tables.NAN_SCRIPTS["log"]
    [change] = re.findall(r"with `(.+)` there", story_of(watched(script, *STOP)))
    assert change == "torch.log(x.clamp_min(1e-12))"
    mended = watched(script.replace("torch.log(x)", change), *STOP)
    assert (mended.status, story_of(mended)) == (0, "")


# The shapes of a custom backward


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", tables.FUNCTIONS)
def test_the_function_its_argument_and_its_caller_are_named(watched, name: str) -> None:
    script, part = tables.FUNCTIONS[name]
    ended = watched(script)
    assert ended.status == 1
    story = story_of(ended)
    assert f"Product.backward (script.py:{marked_line(script)})" in story, ended.stderr
    assert re.search(part, story), story
    assert f"in script.py:{marked_line(script, '# called')}" in story
    assert "Suggestion: " in story and "Tried: " not in story


# DistributedDataParallel


def assert_is_explained(story: str, name: str, script: str) -> None:
    assert tables.PARALLEL[name][2] in story
    if "# here" in script:
        assert f"script.py:{marked_line(script)}" in story
    assert "Suggestion: " in story
    if "twice" not in story:
        assert "2 parameters" in story and "other.weight, other.bias." in story


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", tables.PARALLEL)
def test_parameters_that_are_not_reduced_are_named(watched, name: str) -> None:
    script = tables.parallel(name)
    ended = watched(script)
    assert ended.status == 1
    assert_is_explained(story_of(ended), name, script)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["not_called", "not_in_the_loss", "two_passes", *tables.CORRECT_PARALLEL]
)
def test_two_processes_tell_the_story(
    bare_environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    script = tables.parallel(name, tables.TOGETHER)
    (tmp_path / "script.py").write_text(script)
    words = ("-m", "hookscope", "run", "script.py")
    status, _, said = Launch(tmp_path, bare_environment, *words).end()
    if name in tables.PARALLEL:
        assert status == 1
        assert_is_explained(said, name, script)
    else:
        assert status == 0
        assert [line for line in said.splitlines() if "recorded 3 steps" not in line] == []


# What is correct


CORRECT = {
    **{name: (script, STOP) for name, script in tables.FINITE.items()},
    **{name: (script, ()) for name, script in tables.CORRECT_FUNCTIONS.items()},
    **{name: (tables.parallel(name), ()) for name in tables.CORRECT_PARALLEL},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CORRECT)
def test_what_is_correct_has_no_story(watched, name: str) -> None:
    script, options = CORRECT[name]
    ended = watched(script, *options)
    assert (ended.status, story_of(ended)) == (0, ""), ended.stderr


# The pages


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("nan-in-gradients", STOP),
        ("backward-through-the-graph-a-second-time", ()),
        ("invalid-gradient-at-index", ()),
        ("expected-to-have-finished-reduction", ()),
        ("does-not-require-grad", ()),
    ],
)
def test_the_page_shows_what_is_said(watched, page: str, options, repo: Path) -> None:
    text = (repo / "docs" / "questions" / f"{page}.md").read_text()
    code = code_in(text)
    shown = re.findall(r"^    hookscope: (.+)\n", text, re.MULTILINE)
    assert len(shown) >= 3
    ended = watched(code.replace('dist.init_process_group("gloo")', tables.ALONE), *options)
    assert story_of(ended).replace("script.py", "train.py").splitlines() == shown
