"""What a recording holds: records in execution order, their tensors, and where they came from.

One tensor, one key: ``<module>[:call]/<what>``, such as ``layer3.0.relu:2/output``. The first call
of a module bears no number, so a key stays the same when a later call appears.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from hookscope import store, strict_json
from hookscope.errors import StoreError
from hookscope.stats import Stats, summarize


def key_of(module: str, call: int, what: str) -> str:
    """Return the key of a tensor that has none before it of the same name.

    >>> key_of("layer3.0.relu", 1, "output"), key_of("layer3.0.relu", 2, "output")
    ('layer3.0.relu/output', 'layer3.0.relu:2/output')
    """
    prefix = module if call == 1 else f"{module}:{call}"
    return f"{prefix}/{what.encode('utf-8', 'backslashreplace').decode()}"


@dataclass(frozen=True)
class Record:
    """One recorded tensor.

    Attributes:
        key: its name in the capture and in the file, ``<module>[:call]/<what>``.
        module: dotted name of the module, ``.`` for the model itself.
        type: class name of the module.
        call: which call of the module it was, from 1. For a parameter's gradient: which backward.
        what: the part of the key behind the slash: ``output``, ``output.1.0``, ``input.mask``,
            ``output.grad``, ``weight.grad``.
        kind: ``output``, ``input``, ``output.grad``, ``input.grad``, ``param.grad``, ``op``,
            ``op.grad``, ``attention``, ``cam``, ``attribution`` or ``emitted``; with ``.unedited``
            behind it for a tensor as it was before an edit.
        shape: lengths of the dimensions.
        dtype: name of the tensor's dtype as recorded, ``float32``.
        device: where it was computed.
        aliases: further names of the module, or of the parameter.
        weight_norm: for a parameter's gradient, the Euclidean norm of the parameter.
    """

    key: str
    module: str
    type: str
    call: int
    what: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    aliases: tuple[str, ...] = ()
    weight_norm: float | None = None
    summary: partial[Stats] = field(repr=False, compare=False, default=partial(Stats))

    @cached_property
    def stats(self) -> Stats:
        """Statistics of the tensor as it is when they are first asked for."""
        return self.summary()

    @property
    def ratio(self) -> float | None:
        """Norm of a parameter's gradient over the norm of the parameter itself."""
        norm = self.stats.norm
        return norm / self.weight_norm if self.weight_norm and norm is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the record as a plain dict, statistics included."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "summary"}
        return {**plain, "stats": self.stats.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Return the record that ``to_json`` described."""
        stats: dict[str, Any] = {k: strict_json.number(v) for k, v in data["stats"].items()}
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known.update(shape=tuple(data["shape"]), aliases=tuple(data["aliases"]))
        known.update(weight_norm=strict_json.number(data["weight_norm"]))
        return cls(**known, summary=partial(Stats, **stats))


@dataclass(frozen=True)
class Absent:
    """Something asked for that does not exist, and why in plain words: never a made-up zero."""

    module: str
    type: str
    call: int
    what: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Fired:
    """A matched module that ran, and how often."""

    module: str
    type: str
    calls: int


@dataclass(frozen=True)
class Silent:
    """A matched module that never ran, and the likely cause."""

    module: str
    type: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Which of the matched modules ran (in order of their first call) and which did not."""

    fired: tuple[Fired, ...] = ()
    silent: tuple[Silent, ...] = ()

    @property
    def matched(self) -> int:
        """How many modules the patterns chose."""
        return len(self.fired) + len(self.silent)


class Capture(Mapping[str, Tensor]):
    """Recorded tensors by key, in execution order.

    Attributes:
        records: one ``Record`` for each key, in the same order.
        absent: what was asked for and does not exist.
        coverage: which modules ran.
        metadata: where all this came from: model, weights, inputs, seed, versions.
        output: what the model returned; None for a capture read from a file.

    Example:
        >>> import torch, hookscope
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with hookscope.record(model, layers=["0"]) as capture:
        ...     _ = model(torch.ones(1, 4))
        >>> list(capture), capture["0/output"].shape
        (['0/output'], torch.Size([1, 2]))
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._records: dict[str, Record] = {}
        self.absent: tuple[Absent, ...] = ()
        self.coverage = Coverage()
        self.metadata: dict[str, Any] = {}
        self.output: Any = None

    def __getitem__(self, key: str) -> Tensor:
        return self._tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    __eq__ = object.__eq__  # a mapping's own would compare tensors, which have no one answer
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Capture of {len(self)} tensors, {self.nbytes} bytes>"

    @property
    def records(self) -> tuple[Record, ...]:
        """The records in execution order."""
        return tuple(self._records.values())

    @property
    def nbytes(self) -> int:
        """Size of all recorded tensors in bytes."""
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    def put(
        self,
        tensor: Tensor,
        *,
        module: str,
        type: str,
        call: int,
        what: str,
        kind: str,
        aliases: tuple[str, ...] = (),
        weight_norm: float | None = None,
    ) -> Record:
        """Keep ``tensor`` itself (no copy is made) under the key that its origin gives it."""
        key = first = key_of(module, call, what)
        again = 2
        while key in self._records:  # the dict keys 1 and "1", say, give one name
            key, again = f"{first}~{again}", again + 1
        record = Record(
            key=key,
            module=module,
            type=type,
            call=call,
            what=key.removeprefix(key_of(module, call, "")),
            kind=kind,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            aliases=aliases,
            weight_norm=weight_norm,
            summary=partial(summarize, tensor),
        )
        self._tensors[key] = tensor
        self._records[key] = record
        return record

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write everything but ``output`` to a safetensors file; return its size in bytes.

        Raises:
            StoreError: the file cannot be written. An earlier one is then as it was.
        """
        info = {
            **self.metadata,
            "records": [r.to_json() for r in self.records],
            "absent": [vars(a) for a in self.absent],
            "fired": [vars(f) for f in self.coverage.fired],
            "silent": [vars(s) for s in self.coverage.silent],
        }
        return store.write(path, self._tensors, info)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capture:
        """Read a capture from the file that ``save`` wrote.

        Raises:
            StoreError: the file is missing, damaged, or not hookscope's.
        """
        tensors, info = store.read(path)
        try:
            return cls._of(tensors, info)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"Cannot read {path}: its metadata is damaged ({type(error).__name__}: {error}).",
                "Record the file again.",
            ) from error

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], info: dict[str, Any]) -> Capture:
        capture = cls()
        records = [Record.from_json(data) for data in info.pop("records")]
        capture._records = {record.key: record for record in records}
        capture._tensors = {key: tensors[key] for key in capture._records}
        capture.absent = tuple(Absent(**data) for data in info.pop("absent"))
        fired = tuple(Fired(**data) for data in info.pop("fired"))
        capture.coverage = Coverage(fired, tuple(Silent(**d) for d in info.pop("silent")))
        capture.metadata = {name: value for name, value in info.items() if name != "schema"}
        return capture
