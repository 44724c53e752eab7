"""The options of ``extract``, besides the parts of a request that commands share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.choices import AUTOCASTS, DECODINGS, check_choice
from hookscope.specs.command_options import hold_iterable
from hookscope.specs.record_kinds import VALUE_KINDS, resolve_kinds
from hookscope.specs.reduction import StorageOptions, parse_storage

_LEAST = {"batch": 1, "memory": 1, "workers": 0, "shard_size": 1, "every": 1, "max_tokens": 1}


@dataclass(frozen=True)
class ExtractOptions:
    """How ``extract`` reads a dataset, and what it stores of each row.

    Attributes:
        what: ``output``, ``input`` or both.
        batch: the batch size; None for what fits into ``memory``.
        memory: the memory budget for batches, in bytes.
        workers: processes that read; None for one less than the number of cores.
        shard_size: rows of a shard.
        every: use every N-th input.
        reduce: the reduction of each row.
        store_dtype: the dtype that floating-point values are stored in.
        stats_only: store statistics of the whole dataset and no rows.
        decode: ``exact`` or ``fast``.
        stop: end the forward pass after the last selected layer.
        skip_bad: skip inputs that cannot be read.
        resume: resume an interrupted run.
        force: replace the results in the folder.
        channels_last: use that memory format.
        autocast: ``bfloat16`` or ``float16``.
        max_tokens: texts are cut to that number of tokens.

    Raises:
        RequestError: a number is too small, or a value is not one of the choices.
    """

    what: str | Iterable[str] = ("output",)
    batch: int | None = None
    memory: int = 2 * 10**9
    workers: int | None = None
    shard_size: int | None = None
    every: int = 1
    reduce: str | None = None
    store_dtype: str | None = None
    stats_only: bool = False
    decode: str = DECODINGS[0]
    stop: bool = True
    skip_bad: bool = False
    resume: bool = False
    force: bool = False
    channels_last: bool = False
    autocast: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice("decode", self.decode, DECODINGS)
        check_choice("autocast", self.autocast or AUTOCASTS[0], AUTOCASTS)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise RequestError(f"{name} must be at least {least}, not {value}.")
        hold_iterable(self, "what")
        self.kinds, self.storing  # noqa: B018 - computed for their checks

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, VALUE_KINDS)

    @property
    def storing(self) -> StorageOptions:
        """What is stored of each row."""
        return parse_storage(self.reduce, self.store_dtype, self.stats_only)
