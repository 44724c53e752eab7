"""The processes of one run, as torchrun starts them."""

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

# Imported before a group exists: its default arguments keep the group that exists at the import,
# and with it threads, which may abort the process when Python exits.
import torch.distributed.nn.functional  # noqa: F401
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from hookscope.errors import HookscopeError

# A process may have to wait until another one has done all its shards.
_TIMEOUT = timedelta(days=7)
_POLL_INTERVAL = 0.05  # seconds


@dataclass(frozen=True)
class ProcessGroup:
    """This process and its place in the group of processes of the run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    restarted: bool = False
    store: Any = None

    def broadcast(self, value: Any) -> Any:
        """Return the first process's ``value``."""
        values = [value]
        if self.world > 1:
            with _report_dead_process():
                distributed.broadcast_object_list(values)
        return values[0]

    def sum(self, number: int) -> int:
        """Return the sum of ``number`` over all processes."""
        numbers = [number]
        if self.world > 1:
            numbers *= self.world
            with _report_dead_process():
                distributed.all_gather_object(numbers, number)
        return sum(numbers)

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        if self.world > 1:
            with _report_dead_process():
                distributed.barrier()

    def mark_started(self, folder: str) -> None:
        """Store, for later attempts, that the run into ``folder`` has started."""
        if self.store is not None:
            self.store.set(f"begun/{folder}", "")

    def was_started(self, folder: str) -> bool:
        """Whether an earlier attempt, in which a process died, has started that run."""
        if self.store is None:
            return self.restarted
        return bool(self.store.check([f"begun/{folder}"]))


@contextmanager
def _report_dead_process() -> Iterator[None]:
    """Raise HookscopeError if another process ends during a collective operation."""
    try:
        yield
    except RuntimeError as error:
        raise HookscopeError(
            "Another process of the run has exited.", "See the error message of that process."
        ) from error


@contextmanager
def join_process_group() -> Iterator[ProcessGroup]:
    """Yield the group of processes that torchrun started, or a group of one without torchrun."""
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup()
        return
    group = ProcessGroup(
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
        restarted=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
    )
    if distributed.is_initialized():
        yield group
        return
    store, rank, world = next(rendezvous("env://", timeout=_TIMEOUT))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # outlives a restart
        group = replace(group, store=store)
    if world > 1:
        attempt_store = distributed.PrefixStore(  # type: ignore[attr-defined]
            _agree_on_prefix(store, rank, world), store
        )
        # Only small messages are exchanged, so gloo is enough whatever the device.
        distributed.init_process_group(
            "gloo", store=attempt_store, rank=rank, world_size=world, timeout=_TIMEOUT
        )
    try:
        yield group
        group.barrier()  # the first process to exit would break the connections of the others
    finally:
        if world > 1:
            distributed.destroy_process_group()


def _agree_on_prefix(store: Any, rank: int, world: int) -> str:
    """Return a prefix that all processes of this attempt share, and no earlier attempt used."""
    # torchrun's store outlives a restart and still has the addresses of processes that have died.
    # Its count of restarts differs between machines.
    own = uuid.uuid4().hex
    if rank:
        store.set(f"here/{rank}", own)
        while own not in (ids := json.loads(store.get("meeting"))):
            time.sleep(_POLL_INTERVAL)
        store.set(f"{ids[0]}/{rank}", "seen")
        return str(ids[0])
    others = range(1, world)
    while not store.check([f"{own}/{other}" for other in others]):
        ids = [store.get(f"here/{other}").decode() for other in others]
        store.set("meeting", json.dumps([own, *ids]))
        time.sleep(_POLL_INTERVAL)
    return own
