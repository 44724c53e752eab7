"""The processes of one run, as torch's own launcher (torchrun) starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed

# One process may wait for another as long as a shard takes, or all that are left of them.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Team:
    """This process among those of the run.

    Attributes:
        rank: its number.
        world: how many there are.
        local_rank: its number on this machine.
        local_world: how many there are on this machine.
        restarted: whether the launcher started it again after one had died.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    restarted: bool = False

    def agree(self, value: Any) -> Any:
        """Return what the first process has for ``value``."""
        box = [value]
        if self.world > 1:
            distributed.broadcast_object_list(box)
        return box[0]

    def wait(self) -> None:
        """Wait until every process has come this far."""
        if self.world > 1:
            distributed.barrier()


def is_first() -> bool:
    """Whether this is the process that tells what the run does."""
    return not distributed.is_torchelastic_launched() or os.environ["RANK"] == "0"


@contextmanager
def team() -> Iterator[Team]:
    """Yield this process's place among those that torchrun started; alone where it did not."""
    if not distributed.is_torchelastic_launched():
        yield Team()
        return
    here = Team(
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
        restarted=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
    )
    own = here.world > 1 and not distributed.is_initialized()
    if own:
        # Nothing but a few words goes between them, whatever device they compute on.
        distributed.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield here
    finally:
        if own:
            distributed.destroy_process_group()
