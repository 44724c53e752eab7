"""How worker processes hand tensors over, what they print, and what they do if they cannot."""

from __future__ import annotations

import multiprocessing
import sys  # noqa: F401 (for the code that imports this file)
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.connection import Client
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hookscope.errors import HookscopeError
from hookscope.extraction.row_batches import Collator, DatasetRow, RowBatch, load_batches
from tests.processes import run_python

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the main process reads the rows"
)


SHARED = 400_000  # float32 numbers of a row that goes through shared memory


class Closing(Dataset[DatasetRow]):
    """Opens and closes a connection to the thread that hands tensors over, as Ctrl-C can."""

    def __init__(self, message: object) -> None:
        self.message = message

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> DatasetRow:
        sharer = resource_sharer._resource_sharer  # the worker's, which starts with the first batch
        deadline = time.monotonic() + 60
        while row == 3 and not sharer._address and time.monotonic() < deadline:
            time.sleep(0.01)
        if row == 3:
            key = multiprocessing.current_process().authkey
            with Client(sharer._address, authkey=key) as connection:
                if self.message is not None:
                    connection.send(self.message)
                    time.sleep(0.5)
        return DatasetRow(torch.full((SHARED,), float(row)), {})


def read(message: object) -> list[torch.Tensor]:
    collate = Collator(torch.stack, torch.zeros(SHARED))
    rows = Closing(message)
    return [
        batch.value.clone()
        for batch in load_batches(rows, [[0], [1], [2], [3]], collate, workers=1, pin=False)
    ]


def printed(code: str, repo: Path) -> str:
    """What a process prints that runs ``code``; it has no other threads when it forks."""
    code = f"import torch\nfrom tests.extraction.test_worker_processes import *\n{dedent(code)}"
    return run_python("-c", code, cwd=repo, status=0).stderr


@needs_fork
@pytest.mark.parametrize(
    "message", [None, pytest.param("not a request", marks=pytest.mark.exhaustive)]
)
def test_a_connection_that_is_closed_early_prints_no_more_than_other_errors(repo, message) -> None:
    code = f"assert torch.equal(torch.cat(read({message!r}))[:, 0], torch.arange(4.0))"
    stderr = printed(code, repo)
    assert ("ValueError: too many values to unpack" in stderr) if message else stderr == ""


@dataclass
class Wide(Dataset[DatasetRow]):
    """Rows of a number of columns, each filled with the row's number."""

    columns: int

    def __getitem__(self, row: int) -> DatasetRow:
        return DatasetRow(torch.full((self.columns,), float(row)), {})


def read_wide(
    columns: int = SHARED, make: Callable[[list[Tensor]], object] = torch.stack
) -> list[RowBatch]:
    collate, batches = Collator(make, torch.zeros(columns)), [[0, 1], [2, 3], [4, 5]]
    return list(load_batches(Wide(columns), batches, collate, workers=1, pin=False))


@needs_fork
def test_batches_for_which_shared_memory_is_too_small_go_another_way(repo: Path) -> None:
    # The limit is for files of any kind, and shared memory is a file.
    stderr = printed(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for columns in (10_000, SHARED):  # small batches need no shared memory
            values = torch.cat([batch.value for batch in read_wide(columns)])
            assert torch.equal(values, torch.arange(6.0)[:, None].expand(6, columns))
            print("columns", columns, file=sys.stderr)
        """,
        repo,
    )
    assert "/dev/shm" not in stderr.partition("columns 10000")[0]
    assert stderr.count("(/dev/shm)") == 1
    for advice in ("File too large", "--workers 0", "--batch", "--shm-size"):
        assert advice in stderr


@pytest.mark.exhaustive
@needs_fork
def test_too_few_open_files_for_the_workers_are_an_error(repo: Path) -> None:
    stderr = printed(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14))
        try:
            read_wide()
        except HookscopeError as error:
            print(error.message, error.hint, file=sys.stderr)
        """,
        repo,
    )
    assert "16 open files" in stderr and "--workers 0" in stderr
    assert "Traceback" not in stderr


@needs_fork
def test_a_batch_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(HookscopeError, match="worker process"):
        read_wide(make=lambda values: lambda: values)
