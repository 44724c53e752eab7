"""Weights that are already open, in every function that takes weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import RequestError
from tests.refusals import refused

DIGITS = Path(__file__).parents[2] / "sample_models" / "digits.safetensors"


def test_every_function_takes_an_opened_set() -> None:
    weights = hookscope.load(DIGITS)
    assert hookscope.check(weights).to_json() == hookscope.check(DIGITS).to_json()
    assert hookscope.report(weights).html == hookscope.report(DIGITS).html
    assert hookscope.plot(weights, "fc.weight").shows == hookscope.plot(DIGITS, "fc.weight").shows
    assert hookscope.filters(weights).shows == hookscope.filters(DIGITS).shows
    assert hookscope.diff(weights, DIGITS).same
    assert hookscope.tree(weights).modules == hookscope.tree(DIGITS).modules


def test_a_pickled_model_is_checked_with_trust(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 16)
    torch.nn.init.zeros_(model.weight[3])
    torch.save(model, tmp_path / "best.pt")
    [finding] = hookscope.check(tmp_path / "best.pt", trust=True).findings
    assert (finding.layer, finding.units) == ("weight", (3,))


class Late(torch.nn.Linear):
    """A module that changes its state when it is built from a pickle."""

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.late = torch.nn.Parameter(torch.ones(5, 2))


def test_a_pickled_model_is_built_with_trust_by_every_function(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    torch.save(Late(4, 16), path)
    assert list(hookscope.load(path)) == ["weight", "bias"]
    built = hookscope.load(path, trust=True)
    assert list(built) == ["weight", "bias", "late"]
    assert (built["late"] == 1).all()
    assert hookscope.report(path, trust=True).tensors == 3
    assert hookscope.plot(path, "late", trust=True).shows == ("late (5x2)",)
    result = hookscope.diff(path, path, trust=True)
    assert result.same and len(result.rows) == 3
    [added] = hookscope.diff(hookscope.load(path), built).only_b
    assert added.name == "late"


def test_trust_on_a_file_that_needs_none_changes_nothing() -> None:
    plain, trusted = hookscope.load(DIGITS), hookscope.load(DIGITS, trust=True)
    assert (plain.kind, list(plain)) == (trusted.kind, list(trusted))
    assert hookscope.report(DIGITS, trust=True).html == hookscope.report(DIGITS).html
    assert hookscope.diff(DIGITS, DIGITS, trust=True).same


STATE = torch.nn.Linear(2, 2).state_dict()


@pytest.mark.parametrize(
    "call",
    [
        lambda: hookscope.check(STATE),
        lambda: hookscope.report(STATE),
        lambda: hookscope.tree(STATE),
        lambda: hookscope.plot(STATE),
        lambda: hookscope.diff(STATE, STATE),
        lambda: hookscope.diff(DIGITS, STATE),
        lambda: hookscope.diff(dict(STATE), torch.nn.Linear(2, 2)),
    ],
)
def test_a_state_dict_is_refused_in_a_sentence(call: Callable[[], object]) -> None:
    with refused(RequestError, "type", hint="torch.save"):
        call()


@pytest.mark.exhaustive
def test_parts_of_a_checkpoint_have_pages_of_their_own(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    state = {"w": torch.ones(2, 2)}
    torch.save({"state_dict": state, "ema": state}, tmp_path / "work" / "ckpt.pth")
    for part in ("ema", "state_dict"):
        assert run("report", f"ckpt.pth#{part}").rc == 0
    assert {path.name for path in (tmp_path / "work").glob("*.html")} == {
        "ckpt.ema.html",
        "ckpt.state_dict.html",
    }


class Touching:
    """A file that runs code when it is unpickled, which makes the file ``ran``."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    "call",
    [
        lambda f: hookscope.report(f, f, trust=True),
        lambda f: hookscope.diff(f, f, trust=True, shape=(1, 2)),
        lambda f: hookscope.diff(f, f, trust=True, atol=-1),
        lambda f: hookscope.diff(f, torch.nn.Linear(2, 2), trust=True, weights=["a", "b"]),
        lambda f: hookscope.report(f, DIGITS.with_name("five.safetensors"), trust=True),
        lambda f: hookscope.check(f, trust=True, shape=(1, 4)),
        lambda f: hookscope.check(f, trust=True, only="none such"),
        lambda f: hookscope.filters(f, trust=True, partial=True),
        lambda f: hookscope.tree(f, trust=True, shapes=True),
    ],
)
def test_an_invalid_request_runs_no_code(tmp_path: Path, call: Callable[[str], Any]) -> None:
    content = {"weight": torch.ones(2), "other": Touching(tmp_path / "ran")}
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(RequestError):
        call(str(tmp_path / "a.pth"))
    assert not (tmp_path / "ran").exists()
    hookscope.load(str(tmp_path / "a.pth"), trust=True)
    assert (tmp_path / "ran").exists()


def test_a_trusted_file_names_the_arrays_that_are_left_out(tmp_path: Path) -> None:
    content = {"weight": torch.ones(2), "names": np.array(["a"]), "kind": Touching(tmp_path / "r")}
    torch.save(content, tmp_path / "a.pth")
    opened = hookscope.load(str(tmp_path / "a.pth"), trust=True)
    assert list(opened) == ["weight"]
    assert any("names" in note for note in opened.notes)


@pytest.mark.parametrize("name", ["five.safetensors", "run", "features"])
def test_trust_on_a_result_is_refused(name: str) -> None:
    path = DIGITS.with_name(name)
    functions: list[Callable[..., object]] = [hookscope.load, hookscope.report, hookscope.plot]
    for function in functions:
        with pytest.raises(RequestError, match=f"trust .*{name} "):
            function(path, trust=True)
    capture = hookscope.load(DIGITS.with_name("five.safetensors"))
    for function in functions[1:]:
        with pytest.raises(RequestError, match="trust"):
            function(capture, trust=True)


def test_trust_on_a_path_without_a_result_does_not_hide_what_is_wrong(tmp_path: Path) -> None:
    for trust in (False, True):
        with pytest.raises(hookscope.errors.HookscopeError, match=r"[Nn]o such file"):
            hookscope.load(tmp_path / "none.safetensors", trust=trust)
