"""Scripts run in forks of a process that has imported torch, with ``python`` and with hookscope.

Each is a process with its own end: signals, exit status, tracebacks and ``atexit`` are real. Only
the imports of torch and hookscope, which take seconds, have been done.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hookscope.stores.runs.training_run import TrainingRun

# The marks of a file of tests that use them.
FORKS = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks with torch imported"),
]
TRAIN = "from small_training import train\n"  # the first line of a script

SERVER = """
import json, os, resource, sys
import torch
from tools.warm_process import import_for_forks

torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # imports the compiler, once for all forks
import_for_forks()
reply = os.fdopen(os.dup(1), "w", buffering=1)
while line := sys.stdin.readline():
    request = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(pid, file=reply)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=reply)
else:
    os._exit(0)

os.chdir(request["folder"])
for stream in (1, 2):
    target = os.open(request["streams"][stream - 1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, stream)
    os.close(target)
reply.close()
if request["largest_file"]:
    sys.dont_write_bytecode = True  # it would be cut off, and other tests would import it
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
words = request["words"]
if request["options"] is None:
    from hookscope.training.script_runner import Program
    Program(words[0], tuple(words[1:])).run()
else:
    from hookscope.cli.main import main
    main(["run", *request["options"], *words])
"""


@dataclass(frozen=True)
class Ended:
    """A script that has ended: its exit status, negative for a signal, and what it wrote."""

    status: int
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[str]:
        """The lines that hookscope wrote."""
        return [line for line in self.stderr.splitlines() if line.startswith("hookscope:")]

    @property
    def own(self) -> Ended:
        """The same without them."""
        stderr = re.sub(r"(?m)^hookscope: .*\n", "", self.stderr)
        return Ended(self.status, self.stdout, stderr)


class ForkServer:
    """The process that forks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        options: Sequence[str] | None,
        *,
        while_running: Callable[[int], None] = lambda pid: None,
        largest_file: int = 0,
    ) -> Ended:
        """Run ``hookscope run OPTIONS WORDS``, or ``python WORDS`` if there are no options.

        Args:
            words: the script and its arguments.
            folder: the working folder.
            options: of hookscope.
            while_running: called with the number of the process.
            largest_file: in bytes; writing more fails as on a full disk.
        """
        streams = [folder.parent / name for name in ("stdout", "stderr")]
        request = {
            "words": [*words],
            "folder": str(folder),
            "options": options and [*options],
            "streams": [str(stream) for stream in streams],
            "largest_file": largest_file,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        while_running(int(self._process.stdout.readline()))
        status = int(self._process.stdout.readline())
        return Ended(status, *(stream.read_text() for stream in streams))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def record(work: Path, number: int = 1) -> TrainingRun:
    return TrainingRun(work / "runs" / f"script-{number}")


def steps_of(run: TrainingRun, key: str, measure: str) -> list[int]:
    return run.curve(key, measure).steps.tolist()


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
    (folder / "small_training.py").write_bytes(
        (Path(__file__).parent / "scripts" / "small_training.py").read_bytes()
    )
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
