"""What all tests share: the repository, the real command as a process, rules of property tests."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hookscope.specs.catalog import list_is_current
from tools.warm_process import Finished, WarmProcess

REPO = Path(__file__).resolve().parent.parent

# Two workers with all of a machine's threads each would only stand in each other's way. The
# variable is read when torch is first imported, here and in the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores Ctrl-C in what it starts in the background, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples may import torch on the way, so none has a deadline, on however slow a machine; CI draws
# the same ones every time.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


# With an older torchvision than the bundled list of models is for, names are checked later.
needs_list = pytest.mark.skipif(
    not list_is_current(), reason="the list of models is for another torchvision"
)

Run = Callable[..., Finished]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--refresh`` writes what is said now into files of text; a review reads the difference."""
    parser.addoption("--refresh", action="store_true", help="write transcripts and goldens anew")


def pytest_configure(config: pytest.Config) -> None:
    """Tell also what is no fixture, in each worker."""
    if config.getoption("refresh"):
        os.environ["HOOKSCOPE_REFRESH"] = "1"


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is exhaustive
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Of the cases of a test marked ``sampled(n)``, all but every n-th are exhaustive."""
    numbers: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if numbers[test] % sampled.args[0]:
                item.add_marker("exhaustive")
            numbers[test] += 1


Refused = Callable[..., str]


@pytest.fixture(scope="session")
def repo() -> Path:
    """The folder that holds pyproject.toml."""
    return REPO


@pytest.fixture
def samples_folder(tmp_path: Path) -> Path:
    """A folder with the image and the models of a clone, to write in."""
    work = tmp_path / "clone"
    work.mkdir()
    shutil.copy(REPO / "img.png", work)
    shutil.copytree(REPO / "sample_models", work / "sample_models")
    return work


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    """Random weights and inputs of a test are the same in every run."""
    if torch := sys.modules.get("torch"):  # tests of what runs without it do not bring it in
        torch.manual_seed(7)  # not the 0 from which hookscope itself builds models


@pytest.fixture(autouse=True)
def same_settings_afterwards() -> Iterator[None]:
    """What a command or a library sets for as long as its process lives ends with the test."""
    logger = logging.getLogger("hookscope")
    attributes = {name: getattr(logger, name) for name in ("handlers", "propagate", "level")}
    show = warnings.showwarning
    yield
    for name, value in attributes.items():
        setattr(logger, name, value)
    warnings.showwarning = show
    if torch := sys.modules.get("torch"):
        torch.set_printoptions(profile="default", sci_mode=None)


@pytest.fixture(scope="session")
def bare_environment() -> dict[str, str]:
    """The environment without settings of hookscope's, of Python's or of the terminal's."""
    unwanted = ("HOOKSCOPE_", "XDG_", "_HOOKSCOPE_", "PYTHON")
    terminal = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(unwanted) and name not in terminal | {"TORCH_HOME"}
    } | {"PYTHONPATH": str(REPO)}


@pytest.fixture
def clean_environment(tmp_path: Path, bare_environment: dict[str, str]) -> dict[str, str]:
    """The bare environment with an empty home."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    places = ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    return bare_environment | dict.fromkeys(places, str(home))


@pytest.fixture(scope="session")
def warm_process(bare_environment: dict[str, str]) -> Iterator[WarmProcess]:
    """A process with torch imported, whose forks run commands."""
    process = WarmProcess(bare_environment)
    yield process
    process.close()


@pytest.fixture
def run_script(
    clean_environment: dict[str, str], warm_process: WarmProcess
) -> Callable[[Path], Finished]:
    """Run ``python SCRIPT`` in the folder of the script, and wait for it."""

    def start(script: Path) -> Finished:
        return warm_process.run([], script.parent, clean_environment, script=script)

    return start


@pytest.fixture
def run(tmp_path: Path, clean_environment: dict[str, str], warm_process: WarmProcess) -> Run:
    """Run ``hookscope ARGS...`` as a process and wait for it.

    ``run("tree", "resnet18", cwd=FOLDER, env={"NO_COLOR": "1"}, stdin="...")``: the working folder
    is ``tmp_path / "work"`` unless given, ``env`` is added to a clean environment (a value of None
    takes a name away).
    """

    def start(
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: str = "",
        timeout: float = 300,
    ) -> Finished:
        folder = cwd or tmp_path / "work"
        folder.mkdir(exist_ok=True)
        wanted = {**clean_environment, **(env or {})}
        environment = {name: value for name, value in wanted.items() if value is not None}
        words = [str(argument) for argument in arguments]
        return warm_process.run(words, folder, environment, stdin, timeout)

    return start


@pytest.fixture
def refused(run: Run) -> Refused:
    """Run ``hookscope ARGS...``, which must be refused, and return what it says.

    The arguments are those of ``run``. Nothing is on standard output, and no traceback is shown.
    """

    def start(*arguments: object, **options: Any) -> str:
        done = run(*arguments, **options)
        assert (done.rc, done.stdout) == (2, ""), done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    return start
