"""The processes of one run, as torch's own launcher (torchrun) starts them."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

# Before there is a group: imported later, this keeps the group that there then is in its default
# arguments for ever, and with it threads, which may abort the process when Python ends.
import torch.distributed.nn.functional  # noqa: F401
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from hookscope.errors import HookscopeError

# One process may wait for another as long as a shard takes, or all that are left of them.
_PATIENCE = timedelta(days=7)
_PAUSE = 0.05  # seconds


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those of the run.

    Attributes:
        rank: its number.
        world: how many there are.
        local_rank: its number on this machine.
        local_world: how many there are on this machine.
        restarted: whether the launcher started it again after one had died.
        store: what the launcher keeps for its processes from one attempt to the next; None where
            that is not known.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    restarted: bool = False
    store: Any = None

    def agree(self, value: Any) -> Any:
        """Return what the first process has for ``value``."""
        box = [value]
        if self.world > 1:
            with _together():
                distributed.broadcast_object_list(box)
        return box[0]

    def total(self, number: int) -> int:
        """Return the sum of what each process has for ``number``."""
        each = [number]
        if self.world > 1:
            each *= self.world
            with _together():
                distributed.all_gather_object(each, number)
        return sum(each)

    def wait(self) -> None:
        """Wait until every process has come this far."""
        if self.world > 1:
            with _together():
                distributed.barrier()

    def note_begun(self, folder: str) -> None:
        """Keep in mind, for attempts after this one, that the run into ``folder`` has begun."""
        if self.store is not None:
            self.store.set(f"begun/{folder}", "")

    def has_begun(self, folder: str) -> bool:
        """Whether an attempt before this one, in which a process died, has begun that run."""
        if self.store is None:
            return self.restarted
        return bool(self.store.check([f"begun/{folder}"]))


@contextmanager
def _together() -> Iterator[None]:
    """Tell of a process that ended in the middle of what all do."""
    try:
        yield
    except RuntimeError as error:
        raise HookscopeError(
            "Another process of the run has ended.", "Its own message says why."
        ) from error


@contextmanager
def join_process_group() -> Iterator[ProcessGroup]:
    """Yield this process's place among those that torchrun started; alone where it did not."""
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup()
        return
    here = ProcessGroup(
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
        restarted=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
    )
    if distributed.is_initialized():
        yield here
        return
    store, rank, world = next(rendezvous("env://", timeout=_PATIENCE))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # which outlives a restart
        here = replace(here, store=store)
    own = world > 1
    if own:
        meeting = distributed.PrefixStore(  # type: ignore[attr-defined]
            _meet(store, rank, world), store
        )
        # Nothing but a few words goes between them, whatever device they compute on.
        distributed.init_process_group(
            "gloo", store=meeting, rank=rank, world_size=world, timeout=_PATIENCE
        )
    try:
        yield here
        here.wait()  # whoever ends first would cut the others off in the middle of its last word
    finally:
        if own:
            distributed.destroy_process_group()


def _meet(store: Any, rank: int, world: int) -> str:
    """Return a word that the processes of this attempt share, and those of an earlier one did not.

    torchrun's store outlives a restart, with the addresses of processes that have died in it, and
    its count of restarts differs from machine to machine.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"here/{rank}", own)
        while own not in (told := json.loads(store.get("meeting"))):
            time.sleep(_PAUSE)
        store.set(f"{told[0]}/{rank}", "seen")
        return str(told[0])
    others = range(1, world)
    while not store.check([f"{own}/{other}" for other in others]):
        there = [store.get(f"here/{other}").decode() for other in others]
        store.set("meeting", json.dumps([own, *there]))
        time.sleep(_PAUSE)
    return own
