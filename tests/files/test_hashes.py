"""The hash of a file is exact, and is computed by a thread that nothing waits for in vain."""

from __future__ import annotations

import hashlib
import multiprocessing
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from hookscope.files.hashes import BackgroundHash, blake3_of, sha256_of
from tests.processes import run_python

BLOCK = 1 << 22


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_the_hash_is_that_of_all_bytes(tmp_path: Path, size: int) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    file = tmp_path / "weights"
    file.write_bytes(content)
    assert BackgroundHash(blake3_of, file).result() == blake3(content).hexdigest()
    assert sha256_of(file) == hashlib.sha256(content).hexdigest()


def test_the_work_goes_on_while_the_hash_is_computed() -> None:
    may_end = threading.Event()
    background = BackgroundHash(lambda: str(may_end.wait()))
    may_end.set()  # not reached if the constructor waited
    assert background.result() == background.result() == "True"


def test_the_error_of_a_file_that_cannot_be_read_is_raised_by_the_result(tmp_path: Path) -> None:
    background = BackgroundHash(blake3_of, tmp_path / "absent")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            background.result()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_a_forked_process_computes_the_hash_itself() -> None:
    script = (
        "import os, time\n"
        "from hookscope.files.hashes import BackgroundHash\n"
        "owner = os.getpid()\n"
        "hash = BackgroundHash(lambda: time.sleep(600) if os.getpid() == owner else 'computed')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(hash.result() != 'computed')\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run_python("-c", script, timeout=60, status=0)


def test_a_process_ends_without_waiting_for_a_hash_that_is_not_needed() -> None:
    script = (
        "import time\n"
        "from hookscope.files.hashes import BackgroundHash\n"
        "BackgroundHash(time.sleep, 600)\n"
    )
    run_python("-c", script, timeout=60, status=0)
