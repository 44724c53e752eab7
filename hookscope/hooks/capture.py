"""A recording with its tensors: the result of capture, grads, step and cam, and its file."""

from __future__ import annotations

import os
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.escapes import encodable
from hookscope.files.output_path import SUFFIX, recording_ending
from hookscope.files.signal_safety import uninterrupted
from hookscope.files.words import bytes_text, plural
from hookscope.hooks.device_copies import DeviceCopies
from hookscope.hooks.module_call import RecordKey, TensorOrigin
from hookscope.results.records import Record, Recording, find_key, free_name
from hookscope.results.stats import Stats
from hookscope.results.tokens import PromptTokens, padded_dims
from hookscope.stores.capture_file import CaptureArrays
from hookscope.tensors import save as store
from hookscope.tensors.recording_file import RecordingFile
from hookscope.tensors.tensor_stats import summarize
from hookscope.tensors.threads import fork_safe_lock

# Texts of dtypes and devices, which take as long to make as the rest of a record.
_dtype_name = cache(lambda dtype: str(dtype).removeprefix("torch."))
_device_name = cache(str)
_making = fork_safe_lock()  # replicas of a model run on threads


def summarize_real(tensor: Tensor, dims: Mapping[int, PromptTokens]) -> Stats:
    """Return the statistics of the entries at positions that are not padding."""
    chosen = torch.ones((1,) * tensor.ndim, dtype=torch.bool)
    for dim, prompt in dims.items():
        real = torch.ones(len(prompt.ids), prompt.length, dtype=torch.bool)
        for row, padding in enumerate(prompt.padding):
            real[row, list(padding)] = False
        shape = [1] * tensor.ndim
        shape[0], shape[dim] = real.shape
        chosen = chosen & real.reshape(shape)
    return summarize(tensor[chosen.to(tensor.device).expand(tensor.shape)])


def _record(
    key: str,
    origin: TensorOrigin,
    tensor: Tensor,
    weight_norm: float | None = None,
    summary: partial[Stats] | None = None,
) -> Record:
    return Record(
        key=key,
        **origin,
        shape=tuple(tensor.shape),
        dtype=_dtype_name(tensor.dtype),
        device=_device_name(tensor.device),
        weight_norm=weight_norm,
        summary=summary or partial(summarize, tensor),
    )


class Capture(Recording, Mapping[str, Tensor]):
    """Recorded tensors by key, in execution order.

    ``capture["conv1/output"]`` is the tensor of a key. ``capture["conv1"]`` is the output of the
    layer, or its only tensor if no output was recorded; ``in`` and iteration know keys only.

    Attributes:
        records: one ``Record`` for each key, in the same order.
        absent: requested tensors that do not exist, each with the reason.
        coverage: which modules ran.
        metadata: where the tensors came from: model, weights, inputs, seed, versions.
        output: what the model returned; None for a capture read from a file.

    Example:
        >>> import torch, hookscope
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with hookscope.record(model, layers=["0"]) as capture:
        ...     _ = model(torch.ones(1, 4))
        >>> list(capture), capture["0/output"].shape
        (['0/output'], torch.Size([1, 2]))
        >>> capture["0"] is capture["0/output"]
        True
    """

    def __init__(self, file: RecordingFile | None = None) -> None:
        self._added: deque[tuple[RecordKey, Tensor]] = deque()  # those without a key
        self._stored: dict[str, Tensor] = {}
        self._unrecorded: dict[str, TensorOrigin] = {}  # those of ``_stored`` without a record
        self._prefixes: dict[str, str] = {}  # of the keys of each layer's first call
        self._taken: set[str] = set()
        super().__init__()
        self._file = file  # has some of the tensors already
        self.copies: DeviceCopies | None = None  # which make the tensors
        self.output: Any = None

    def __getitem__(self, key: str) -> Tensor:
        """Return the tensor of a key, or of a layer that has one.

        Raises:
            MissingKeyError: a ``KeyError``: there is no such tensor, or more than one.
        """
        tensor = self._tensors.get(key)
        return self._tensors[find_key(key, self._records)] if tensor is None else tensor

    def __contains__(self, key: object) -> bool:
        self.make_keys()
        return key in self._named or key in self._unrecorded

    def __iter__(self) -> Iterator[str]:
        self.make_keys()
        return chain(tuple(self._named), tuple(self._unrecorded))

    def __len__(self) -> int:
        self.make_keys()
        return len(self._named) + len(self._unrecorded)

    __eq__ = object.__eq__  # Mapping's would compare tensors, elementwise
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec")
        of_model = f" of {model}" if model else ""
        return f"<Capture of {plural(len(self), 'tensor')}{of_model}, {bytes_text(self.nbytes)}>"

    @property
    def nbytes(self) -> int:
        """Size of all recorded tensors in bytes."""
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    def numpy(self, key: str) -> NDArray[Any]:
        """Return a tensor as an array, which may share the memory of the tensor.

        Dtypes that numpy lacks are widened without a change of value: bfloat16 and the float8s
        become float32, complex32 complex64.

        Args:
            key: a key, or a layer with one tensor, as for ``capture[key]``.

        Raises:
            MissingKeyError: there is no such tensor, or more than one.
            StoreError: numpy has no dtype for it.

        Example:
            >>> import torch, hookscope
            >>> model = torch.nn.ReLU()
            >>> with hookscope.record(model) as capture:
            ...     _ = model(torch.tensor([-1.0, 2.0]))
            >>> capture.numpy(".")
            array([0., 2.], dtype=float32)
        """
        return store.to_array(key, self[key])

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return all tensors as arrays, by key; ``dict(capture)`` has the tensors themselves.

        Raises:
            StoreError: numpy has no dtype for one of them.
        """
        return {key: self.numpy(key) for key in self}

    def reader(self) -> CaptureArrays:
        """Return the capture for reading without torch, as ``plot`` and ``report`` take it."""
        return CaptureArrays(self, self.numpy, self.nbytes)

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
        held: bool = True,
        summary: partial[Stats] | None = None,
    ) -> Record:
        """Store ``tensor`` itself, not a copy, under the key of its module, call and name.

        The arguments that are not listed are those of ``Record``.

        Args:
            tensor: the tensor, which must not be changed later.
            held: if False, only the record is stored, with the current statistics.
            summary: computes the statistics when they are read; else they are those of ``tensor``.
        """
        records = self._records  # with those before it
        origin: TensorOrigin = {
            "module": module,
            "type": type,
            "call": call,
            "what": what,
            "kind": kind,
            "aliases": aliases,
        }
        key = self._name(origin)
        if summary is None and not held:
            summary = partial(Stats, **summarize(tensor).to_json())
        if held:
            self._stored[key] = tensor
        record = records[key] = _record(key, origin, tensor, weight_norm, summary)
        return record

    def _name(self, origin: TensorOrigin) -> str:
        """The key of a tensor, and the end of it in ``origin``, if another has the same name."""
        prefix = self._prefix(origin["module"], origin["call"]) + "/"
        key = prefix + encodable(origin["what"])
        if key in self._unrecorded or key in self._named:
            key = free_name(key, ChainMap[str, Any]({}, self._unrecorded, self._named))
        origin["what"] = key[len(prefix) :]
        return key

    def name_layers(self, names: Iterable[str]) -> None:
        """Fix how the keys of these layers begin, before any of them runs.

        The second call of ``d`` has the prefix ``d:2``, which may also be the name of a layer.
        """
        for name in names:
            if name not in self._prefixes:
                prefix = self._prefixes[name] = free_name(encodable(name), self._taken)
                self._taken.add(prefix)

    def _prefix(self, module: str, call: int) -> str:
        prefix = self._prefixes.get(module) or encodable(module)
        return prefix if call == 1 else free_name(f"{prefix}:{call}", self._taken)

    def add(self, key: RecordKey, tensor: Tensor) -> None:
        """Store ``tensor`` itself as ``put`` does, and make its record when records are read.

        Args:
            key: module, call and name of the tensor.
            tensor: the tensor, which must not be changed later.
        """
        self._added.append((key, tensor))

    @property
    def _records(self) -> dict[str, Record]:
        self.make_keys()
        if self._unrecorded:
            self._make_records()
        return self._named

    @_records.setter
    def _records(self, records: dict[str, Record]) -> None:
        self._named = records

    @property
    def _tensors(self) -> dict[str, Tensor]:
        self.make_keys()
        return self._stored

    @_tensors.setter
    def _tensors(self, tensors: dict[str, Tensor]) -> None:
        self._stored = tensors

    def wait(self) -> None:
        """Wait until the values of all tensors are there."""
        if self.copies is not None:
            self.copies.wait()

    def make_keys(self) -> None:
        """Give keys to all tensors that were added, and wait for their values.

        No key refers to its module then.
        """
        self.wait()
        if self._added:
            self._make_keys()

    @uninterrupted  # or a tensor would be lost
    def _make_keys(self) -> None:
        with _making:
            while self._added:
                added, tensor = self._added.popleft()
                origin = added.origin()
                key = self._name(origin)
                self._stored[key], self._unrecorded[key] = tensor, origin

    @uninterrupted
    def _make_records(self) -> None:
        with _making:
            for key in list(self._unrecorded):
                self._named[key] = _record(key, self._unrecorded[key], self._stored[key])
                del self._unrecorded[key]

    def exclude_padding(self) -> None:
        """Leave the padding of a batch of tokens out of the statistics; tensors do not change."""
        for key, record in self._records.items():
            if key in self._tensors and (dims := padded_dims(record, self.metadata)):
                summary = partial(summarize_real, self._tensors[key], dims)
                self._records[key] = replace(record, summary=summary)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write everything but ``output`` to a safetensors file; return its size in bytes.

        Args:
            path: its extension selects the format: ``.safetensors``, also without one, or
                ``.npy`` (for one tensor) or ``.npz``, which have no metadata. Dtypes that numpy
                does not have are widened in these: bfloat16 and float8 to float32, complex32 to
                complex64.

        Raises:
            RequestError: the extension is another one, or there are several tensors for a ``.npy``
                file.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        ending = recording_ending(Path(path))
        if ending != SUFFIX:
            return store.write_numpy(path, self._tensors, ending)
        if self._file is not None and self._file.path == Path(path):
            finished = self._file.finish(self._tensors, self.to_info())
            if finished:
                self._tensors |= finished
                self._file = None
                return Path(path).stat().st_size
        return store.write_tensors(path, self._tensors, self.to_info())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capture:
        """Read a capture from the file that ``save`` wrote.

        Raises:
            ResultsFileError: the file is missing, damaged, or was not written by hookscope.
        """
        tensors, info = store.read_tensors(path)
        capture = cls()
        capture.load_info(info, {key: tensor.shape for key, tensor in tensors.items()}, path)
        capture._tensors = {key: tensors[key] for key in capture._records}
        return capture
