"""What worker processes print while they hand tensors over."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from multiprocessing import resource_sharer
from multiprocessing.connection import Client
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from hookscope.extraction.row_batches import Collator, Row, load_batches

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the main process reads the rows"
)


class Closing(Dataset[Row]):
    """Opens and closes a connection to the thread that hands tensors over, as Ctrl-C can."""

    def __init__(self, message: object) -> None:
        self.message = message

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Row:
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
        return Row(torch.full((2,), float(row)), {})


def read(message: object) -> list[torch.Tensor]:
    collate = Collator(torch.stack, torch.zeros(2))
    rows = Closing(message)
    return [
        batch.value.clone()
        for batch in load_batches(rows, [[0], [1], [2], [3]], collate, workers=1, pin=False)
    ]


def said(message: object, repo: Path) -> str:
    """What a process prints that reads the rows; it has no other threads when it forks."""
    code = (
        "import torch\nfrom tests.extraction.test_worker_processes import read\n"
        f"assert torch.equal(torch.cat(read({message!r}))[:, 0], torch.arange(4.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    return done.stderr


@needs_fork
def test_a_connection_that_is_closed_early_prints_nothing(repo: Path) -> None:
    assert said(None, repo) == ""


@needs_fork
def test_other_errors_of_that_thread_are_printed(repo: Path) -> None:
    assert "ValueError: too many values to unpack" in said("not a request", repo)
