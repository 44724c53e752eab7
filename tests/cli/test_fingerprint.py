"""``hookscope fingerprint``, and ``diff`` with its files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import hookscope
from hookscope.errors import RequestError
from hookscope.stores.fingerprint_file import open_fingerprint
from hookscope.views.fingerprint_diff import verdict_sentences
from tests.conftest import REPO
from tests.refusals import refused

MODEL = str(REPO / "sample_models" / "digits.py") + ":trained"
FIVE = str(REPO / "sample_models" / "five.png")
KNOWN = REPO / "sample_models" / "digits.fp"


@pytest.mark.slow
def test_a_model_is_the_same_as_its_file_and_another_weight_is_found(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = run("fingerprint", MODEL, "--input", FIVE, "-o", "net.fp")
    assert done.rc == 0, done.stderr
    first = (work / "net.fp").read_bytes()
    assert run("fingerprint", MODEL, "--input", FIVE, "-o", "net.fp").rc == 0
    assert (work / "net.fp").read_bytes() == first
    assert run("diff", "net.fp", KNOWN).rc == 0  # that of another machine, or of this one
    same = run("diff", MODEL, "net.fp", "--input", FIVE, "--json")
    assert same.rc == 0 and json.loads(same.stdout)["same"]
    other = run("diff", MODEL, "net.fp", "--shape", "2x1x8x8")
    said = "The inputs differ: ./input.0: shape 1x1x8x8 in the file, 2x1x8x8 in the model."
    assert other.rc == 1 and said in other.stdout
    assert "weights: as built by" in other.stderr  # there is one model, so not "weights of A"
    gone = run("diff", MODEL, "nett.fp")
    assert gone.rc == 2
    assert "Did you mean net.fp?" in gone.stderr
    untrained = MODEL.replace("trained", "DigitsCNN")
    random = run("diff", untrained, "net.fp", "--input", FIVE, "-o", "page.html")
    assert random.rc == 1
    assert "conv1/output (Conv2d)" in random.stdout
    assert "beyond its rounding" in (work / "page.html").read_text()


@pytest.mark.slow
def test_zeros_of_another_sign_are_not_said_to_have_the_same_bits(tmp_path: Path) -> None:
    import torch

    net, x = torch.nn.Sequential(torch.nn.Identity()), torch.zeros(1, 4)
    hookscope.fingerprint(net, input=x).save(tmp_path / "net.fp")
    found = hookscope.diff(net, tmp_path / "net.fp", input=-x)
    assert not found.a["0/output"].same_bits(found.b["0/output"])
    assert found.same and verdict_sentences(found)[0][0].endswith("compared: all are equal.")


@pytest.mark.slow
def test_a_model_on_the_meta_device_has_no_fingerprint(tmp_path: Path) -> None:
    import torch

    net, x = torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.ones(1, 4)
    hookscope.fingerprint(net, input=x).save(tmp_path / "net.fp")
    empty = torch.nn.Sequential(torch.nn.Linear(4, 2, device="meta"))
    with refused(RequestError, "meta device", hint="Load the weights"):
        hookscope.fingerprint(empty, input=x)
    with refused(RequestError, "meta device", hint="Load the weights"):
        hookscope.diff(empty, tmp_path / "net.fp", input=x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("fingerprint 1", "fingerprint 9"), "has format 9"),
        (lambda text: text.replace("1x16x8x8", "1xx8", 1), "line 16"),
        (lambda text: text[:-400], "in line"),
        (lambda text: text.replace("=fc/output", "=fd/output"), "in line"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "net.fp"
    path.write_text(change(KNOWN.read_text()))
    with pytest.raises(hookscope.HookscopeError, match=message):
        open_fingerprint(path)


def test_names_with_spaces_and_signs_are_read_back(tmp_path: Path) -> None:
    import torch

    net = torch.nn.Module()
    net.add_module('a =,#" é', torch.nn.Linear(3, 3))
    net.forward = lambda x: net.get_submodule('a =,#" é')(x) * 2
    made = hookscope.fingerprint(net, input=torch.ones(1, 3))
    made.save(tmp_path / "net.fp")
    read = open_fingerprint(tmp_path / "net.fp")
    assert read.by_key == made.by_key and read.to_text() == made.to_text()


def test_a_file_does_not_grant_trust() -> None:
    """A fingerprint may come by mail; only the user says whose pickles may run."""
    from hookscope.specs.fingerprint_request import FingerprintRequest

    request = FingerprintRequest(MODEL, "net.fp")
    known = {"trust": True, "seed": 3}
    with_file = request.with_options(known)
    assert (with_file.trust, with_file.seed) == (False, 3)
    assert FingerprintRequest(MODEL, "net.fp", trust=True).with_options(known).trust


PLUGIN = """
import sys
import pytest

def test_plain():
    assert "torch" not in sys.modules

@pytest.mark.parametrize("slope", [0.0, {slope}])
def test_net(hookscope_golden, slope):
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LeakyReLU(slope))
    hookscope_golden(net, torch.ones(2, 4))
    # Pytest's hook would compile each module of hookscope again; it is there for the user's.
    loader = sys.modules["hookscope.execution.prepare"].__loader__
    assert type(loader).__name__ == "SourceFileLoader"
    assert any(type(finder).__name__ == "AssertionRewritingHook" for finder in sys.meta_path)
"""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_fixture_writes_only_when_told_and_names_the_layer(tmp_path: Path, workers) -> None:
    import subprocess

    folder = tmp_path / "project"
    folder.mkdir()
    test, golden = folder / "test_it.py", folder / "golden"
    test.write_text(PLUGIN.format(slope=0.5))
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTEST_ADDOPTS": ""}

    def run_tests(*more: str) -> str:
        plugin = ("-p", "no:cacheprovider")
        words = [sys.executable, "-m", "pytest", "-c", os.devnull, *plugin, *workers, *more]
        return subprocess.run(
            [*words, f"--basetemp={tmp_path / 'base'}", str(test)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    missing = run_tests()
    assert "2 failed" in missing and "pytest --hookscope-update" in missing
    assert not golden.exists()
    written = run_tests("--hookscope-update")
    assert "3 passed" in written and "hookscope: wrote golden" in written
    before = {file: file.read_bytes() for file in golden.iterdir()}
    assert sorted(file.name for file in before) == ["test_net-0.0.fp", "test_net-0.5.fp"]
    assert "3 passed" in run_tests()
    test.write_text(PLUGIN.format(slope=0.5).replace("LeakyReLU(slope)", "LeakyReLU(slope + 0.1)"))
    failed = run_tests()
    assert "2 failed" in failed and "1/output (LeakyReLU)" in failed
    assert "hookscope diff golden" in failed
    assert before == {file: file.read_bytes() for file in golden.iterdir()}


def run_pytest(folder: Path) -> str:
    """Run pytest in a process of its own, with files to be written; return what it printed."""
    import subprocess

    words = ["-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "--hookscope-update"]
    return subprocess.run(
        [sys.executable, *words, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPO), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_that_fails_is_explained_below_the_line_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import torch\nfrom torch import nn\n\ndef test_net(hookscope_golden):\n"
        "    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))\n"
        "    hookscope_golden(net, torch.ones(2, 3))\n"
    )
    done = run_pytest(tmp_path)
    line = done.index(">       hookscope_golden(net, torch.ones(2, 3))")
    assert done.index("ForwardError: The forward pass failed in layer 1 (Linear)") > line
    assert "hookscope/" not in done and "Traceback" not in done


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_tests_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for file, slope in (("test_a.py", 0.5), ("test_b.py", 0.6)):
        (tmp_path / file).write_text(
            "import torch\n\ndef test_net(hookscope_golden):\n"
            f"    hookscope_golden(torch.nn.LeakyReLU({slope}), -torch.ones(2, 4))\n"
        )
    done = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in done
    assert "another test, test_a.py::test_net" in done
    known = open_fingerprint(tmp_path / "golden" / "test_net.fp")
    assert known.metadata["test"].endswith("test_a.py::test_net")
