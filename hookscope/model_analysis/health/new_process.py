"""A run of a model in a new process, which returns a hash of each value."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.execution.objective import objective_of_check
from hookscope.execution.prepare import Prepared, prepare
from hookscope.model_analysis.health.compared_runs import Place, run_values
from hookscope.specs.module_names import parent_of
from hookscope.specs.request import Request
from hookscope.tensors.hash import hash_tensors

STATE = "state"  # the kind of a parameter or buffer, whose values a new process makes or reads anew

Hashes = dict[Place, str | None]

# The working folder would come first in the path, and its files could hide libraries.
_START = f"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from pathlib import Path
from {__name__} import _answer
_answer(Path(sys.argv[1]))
"""


def state_hashes(prepared: Prepared) -> Hashes:
    """Return a hash of each parameter and buffer."""
    return {
        Place(parent_of(name), 1, name.rpartition(".")[2], STATE): hash_of(tensor)
        for name, tensor in _state_of(prepared)
    }


def _state_of(prepared: Prepared) -> Iterator[tuple[str, Tensor]]:
    yield from prepared.module.named_parameters()
    yield from prepared.module.named_buffers()


def hash_of(tensor: Tensor) -> str | None:
    """Return a hash of a tensor; None if its values cannot be read."""
    return hash_tensors([("", tensor)])


def hashes_in_new_process(request: Request, *, gradients: bool) -> Hashes:
    """Return a hash of each parameter, buffer and value of a run in a new process, in order.

    Raises:
        HookscopeError: the request cannot be passed on, or the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "request")
        try:
            file.write_bytes(pickle.dumps((request, gradients, torch.get_num_threads())))
        except Exception as error:  # a value of the request may be any object
            raise HookscopeError(f"The request cannot be sent to a process: {error}.") from error
        command = [sys.executable, "-c", _START, str(file)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            *_, last = ["no message", *done.stderr.strip().splitlines()]
            raise HookscopeError(f"A new process failed: {last.rstrip('.')}.")
        hashes: Hashes = pickle.loads(file.read_bytes())
    return hashes


def _answer(file: Path) -> None:
    """Run the request in a file, and write the hashes in its place."""
    request, gradients, threads = pickle.loads(file.read_bytes())
    torch.set_num_threads(threads)
    objective = objective_of_check(request.loss) if gradients else None
    prepared = prepare(request)
    hashes = state_hashes(prepared)

    def receive(place: Place, tensor: Tensor) -> None:
        hashes[place] = hash_of(tensor)

    run_values(prepared, receive, objective)
    file.write_bytes(pickle.dumps(hashes))
