"""Fixtures that run a text as a script in a fork, with ``python`` and with hookscope."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.forked import Ended, ForkServer

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def fork_server(bare_environment: dict[str, str]) -> Iterator[ForkServer]:
    """The process that forks."""
    server = ForkServer(bare_environment | {"HOOKSCOPE_DEBUG": "1", "OMP_NUM_THREADS": "1"})
    yield server
    server.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working folder, with the module ``small_training``."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "small_training.py").write_bytes((SCRIPTS / "small_training.py").read_bytes())
    return folder


@pytest.fixture
def watched(work: Path, fork_server: ForkServer) -> Callable[..., Ended]:
    """Run a text as ``script.py`` under hookscope."""

    def start(text: str, *options: str, **more) -> Ended:
        (work / "script.py").write_text(textwrap.dedent(text))
        return fork_server.run(["script.py"], work, options, **more)

    return start


@pytest.fixture
def both_ways(work: Path, fork_server: ForkServer, watched) -> Callable[..., Ended]:
    """Run it also as Python does; what it writes and its exit status are the same."""

    def start(text: str, *options: str, **more) -> Ended:
        ours = watched(text, *options, **more)
        plain = fork_server.run(["script.py"], work, None, **more)
        assert ours.own == plain
        return ours

    return start
