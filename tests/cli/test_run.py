"""``hookscope run``: whose options are whose, what is refused, and when the watching starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookscope.errors import HookscopeError, LayerError, RequestError
from hookscope.specs.watch_options import STOPS, WATCHED, WatchOptions
from tests.cli.conftest import Parse
from tests.processes import COMMAND, run_python

# Stands in for torch and for what watches it, so that no test waits for the real ones.
SCRIPT = """
import sys, types
print(*sys.argv)
module = types.ModuleType("hookscope.training.watcher")
class Watcher:
    def __init__(self, options, writer, live=None):
        self.writer = writer
        print(options, writer.info["script"], "complete" in vars(sys.modules["torch"]))
        if "fail" in sys.argv:
            raise RuntimeError("planted")
    def install(self):
        pass
    def finish(self, status, exit_status):
        print("finish", status, exit_status)
module.Watcher = Watcher
sys.modules[module.__name__] = module
print("before")
import torch
print("after")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a script."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "torch.py").write_text("import torch\n__version__ = '0'\ncomplete = True\n")
    return work


@pytest.fixture
def hookscope(folder: Path, clean_environment: dict[str, str]):
    """Run ``hookscope ARGUMENTS`` in the folder."""

    return lambda *words, **environment: run_python(
        *COMMAND, *words, cwd=folder, env=clean_environment | environment
    )


def test_watching_starts_when_torch_is_imported(hookscope) -> None:
    done = hookscope("run", "--every", "5", "-l", "fc", "--stop-on", "nan,inf", "train.py", "-l")
    expected = WatchOptions(every=5, layers=("fc",), stop_on=("nan", "inf"))
    assert done.stdout.splitlines() == [
        "train.py -l",
        "before",
        f"{expected} train.py True",
        "after",
        "finish finished 0",
    ]
    said = "hookscope: no step was recorded"
    assert (done.stderr.startswith(said), done.rc) == (True, 0)
    assert hookscope("run", "-q", "train.py").stderr == ""


def test_a_fault_of_the_watching_does_not_stop_the_script(hookscope) -> None:
    done = hookscope("run", "train.py", "fail")
    assert (done.stdout.splitlines()[-1], done.rc) == ("after", 0)
    [line] = done.stderr.splitlines()
    assert line.startswith("hookscope: ")
    assert line.endswith("RuntimeError: planted. The script continues.")


def test_a_script_without_torch_runs(hookscope, folder: Path) -> None:
    (folder / "train.py").write_text("print('alone'); raise SystemExit(3)")
    done = hookscope("run", "train.py")
    said = "hookscope: the script did not import torch, so nothing was recorded.\n"
    assert (done.stdout, done.stderr, done.rc) == ("alone\n", said, 3)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["train.py", "--every", "3", "-h", "--", "-q"], "train.py --every 3 -h -- -q"),
        (["--", "train.py", "--live"], "train.py --live"),
        (["-q", "-v", "--live", "train.py"], "train.py"),
        (["-m", "train", "--every", "3", "-m"], "/train.py --every 3 -m"),
        (["-m", "--every", "3", "train", "--layer", "torch.py", "train.py"], "torch.py train.py"),
        (["train.py", "--layer", "torch.py", "train.py"], "train.py --layer torch.py train.py"),
    ],
    ids=" ".join,
)
def test_options_before_the_script_are_ours_and_all_after_it_are_its_own(
    hookscope, words: list[str], seen: str
) -> None:
    done = hookscope("run", *words)
    assert (done.stdout.splitlines()[0][-len(seen) :], done.rc) == (seen, 0)


def test_variables_set_options(hookscope) -> None:
    done = hookscope("run", "train.py", HOOKSCOPE_RUN_EVERY="7", HOOKSCOPE_RUN_WHAT="gradients")
    assert "every=7" in done.stdout
    assert "what=('gradients',)" in done.stdout


@pytest.mark.skipif(os.name == "nt" or not os.geteuid(), reason="root reads every file")
def test_a_script_that_cannot_be_read_is_an_error(hookscope, folder: Path) -> None:
    (folder / "train.py").chmod(0)
    done = hookscope("run", "train.py")
    assert done.rc == 2
    assert "The script train.py cannot be read: Permission denied." in done.stderr


def test_a_syntax_error_is_that_of_the_script(hookscope, folder: Path) -> None:
    (folder / "train.py").write_text("def f(:\n")
    done = hookscope("run", "train.py")
    assert done.rc == 1
    assert done.stderr.splitlines()[0] == f'  File "{folder / "train.py"}", line 1'
    assert "hookscope" not in done.stderr


def test_the_command_has_the_defaults_of_the_options(parse: Parse) -> None:
    params = parse("run", "train.py").params
    fields = {"every": None, "layers": (), "what": None, "stop_on": None, "live": False}
    fields["fingerprint"] = False
    assert {name: params[name] for name in fields} == fields
    assert params["output"] is None


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"every": 0}, RequestError, "--every"),
        ({"every": 1.5}, RequestError, "--every"),
        ({"what": ""}, RequestError, "--what"),
        ({"what": ()}, RequestError, "--what is empty."),
        ({"stop_on": ["nan", "oom"]}, RequestError, "'oom'"),
        ({"layers": ["!"]}, LayerError, "pattern is empty"),
        ({"output": ""}, RequestError, "--output is empty."),
        ({"output": __file__}, RequestError, "is a file"),
    ],
)
def test_wrong_options_are_refused_when_they_are_made(
    values: dict[str, object], error: type[HookscopeError], message: str
) -> None:
    with pytest.raises(error) as caught:
        WatchOptions(**values)  # type: ignore[arg-type]
    assert message in caught.value.message


def test_options_are_held_as_tuples() -> None:
    options = WatchOptions(layers=iter(["a", "!b"]), what="gradients, activations,gradients")
    assert options.layers == ("a", "!b")
    assert options.what == ("gradients", "activations")
    assert WatchOptions(stop_on=",".join(STOPS)).stop_on == STOPS
    assert (WatchOptions().layers, WatchOptions().what) == (None, WATCHED)


@pytest.mark.slow
def test_torchrun_starts_it_on_each_rank(folder: Path, clean_environment) -> None:
    (folder / "ranks.py").write_text(
        "import os, sys\n"
        "open(os.environ['RANK'], 'w').write(f'{__name__} {__file__} {sys.argv}')\n"
        "sys.exit(sys.argv[1:] != ['--epochs', '3'])\n"
    )
    (folder / "torch.py").unlink()
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    line = (*torchrun, *COMMAND, "run", "ranks.py", "--epochs", "3")
    run_python(*line, cwd=folder, env=clean_environment | {"OMP_NUM_THREADS": "1"}, status=0)
    for rank in "01":
        expected = f"__main__ {folder / 'ranks.py'} ['ranks.py', '--epochs', '3']"
        assert (folder / rank).read_text() == expected
