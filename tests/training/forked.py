"""Scripts run in forks of a process that has imported torch, with ``python`` and with hookscope.

Each is a process with its own end: signals, exit status, tracebacks and ``atexit`` are real. Only
the import of torch, which takes seconds, has been done.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookscope.stores.runs.training_run import TrainingRun

TRAIN = "from small_training import train\n"  # the first line of a script

SERVER = """
import json, os, resource, sys
import torch

torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # imports the compiler, once for all forks
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
