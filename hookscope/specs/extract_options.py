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
    """How ``extract`` reads a dataset, and what it stores of each row."""

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
