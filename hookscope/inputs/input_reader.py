"""What every reader of inputs takes and returns, and the helpers that readers share."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import HookscopeError, InputError, cause
from hookscope.files.file_types import UNKNOWN, WRITE_AGAIN, describe_file
from hookscope.files.words import shape_text
from hookscope.results.metadata import InputMetadata
from hookscope.sources.loaded import LoadedModel, Numbers, Recipe, Size, seeded_generator
from hookscope.specs.input_spec import STDIN, InputSpec
from hookscope.specs.model_spec import end_sentence
from hookscope.tensors.nested import as_call, bits_of, walk


@dataclass(frozen=True)
class ReadContext:
    """The model that an input is read for, and the options of the request."""

    loaded: LoadedModel
    shape: tuple[int, ...] | None = None
    preprocess: str | None = None
    size: Size | None = None
    mean: Numbers = None
    std: Numbers = None
    seed: int = 0
    chat: bool = False
    generator: torch.Generator = field(default_factory=lambda: seeded_generator(0))


@dataclass(frozen=True)
class Batch:
    """The input of one run of a model, or what was read from the specs for one argument of it."""

    value: Any
    sources: tuple[InputMetadata, ...]
    note: str
    recipe: Recipe | None = None


# Reads one spec: returns its value, and the hash of its file or None.
OpenTensor = Callable[[ReadContext, InputSpec], tuple[Any, str | None]]


def read_bytes(path: str, max_bytes: int | None = None, hint: str = "") -> bytes:
    """Return the bytes of a file, or of standard input for ``-``."""
    if path == STDIN and sys.stdin.isatty():
        raise InputError(
            "Standard input is a terminal, and an image is expected.",
            "Pipe one in: hookscope capture --input - < img.png",
        )
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
            data = file.read() if max_bytes is None else file.read(max_bytes + 1)
    except OSError as exc:
        raise InputError(f"{describe_path(path)} cannot be read: {exc.strerror}.") from exc
    if not data and path == STDIN:
        raise InputError(
            "Standard input is empty.",
            "Pipe an image in: hookscope capture --input - < img.png",
        )
    if not data:
        raise InputError(f"{describe_path(path)} is empty.", WRITE_AGAIN)
    if max_bytes is not None and len(data) > max_bytes:
        raise InputError(
            f"{describe_path(path)} exceeds {max_bytes >> 20} MiB, the limit for such a file.",
            hint,
        )
    return data


def describe_path(path: str) -> str:
    """Return the subject of an error about a file."""
    return "The data from standard input" if path == STDIN else f"The file {path!r}"


@contextmanager
def decoding_errors(path: str, what: str) -> Iterator[None]:
    """Turn any error of a decoder into an InputError: the file is damaged, or is not ``what``."""
    try:
        yield
    except HookscopeError:
        raise
    except MemoryError as exc:
        raise InputError(
            f"{describe_path(path)} would need more memory than there is.", WRITE_AGAIN
        ) from exc
    except Exception as exc:  # decoders raise nearly any type for a damaged file
        kind = describe_file(path)[0]
        looks = "" if kind in (UNKNOWN, what) else f"; it looks like {kind}"
        why = end_sentence(cause(exc).partition("\n")[0])
        raise InputError(
            f"{describe_path(path)} cannot be read as {what}{looks}: {why}", WRITE_AGAIN
        ) from exc


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def tensor_entry(tensor: Tensor, spec: str, digest: str | None) -> InputMetadata:
    """Return the metadata entry of a tensor that was read; see ``Batch.sources``."""
    return {
        "shape": shape_text(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "spec": spec,
        "sha256": digest,
    }


def tensor_entries(value: Any, spec: str, digest: str | None) -> tuple[InputMetadata, ...]:
    """Return the metadata entry of each tensor in ``value``; one of several has its ``part``."""
    tensors = list(walk(value))
    entries = tuple(tensor_entry(t, spec, digest or tensor_sha256(t)) for _, t in tensors)
    if not entries:
        return ({"shape": "", "dtype": "", "spec": spec, "sha256": digest},)
    if len(entries) == 1:
        return entries
    return tuple(
        {**entry, "part": ".".join(path)} for entry, (path, _) in zip(entries, tensors, strict=True)
    )


def tensor_sha256(tensor: Tensor) -> str | None:
    """Return the hash of a tensor's bytes; None for a sparse, quantized or meta tensor."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    return sha256(bits_of(tensor.cpu()).numpy().tobytes())


def format_shapes(sources: Sequence[InputMetadata]) -> str:
    """Return the shapes as text: ``1x3x8x8 and 2``."""
    return " and ".join(source["shape"].replace("scalar", "one number") for source in sources)


def read_joined(
    context: ReadContext, specs: Sequence[InputSpec], reader_of: Callable[[str], OpenTensor]
) -> Batch:
    """Read specs of tensors for one argument; several are joined along the first dimension."""
    values: list[Any] = []
    sources: list[InputMetadata] = []
    notes = []
    for spec in specs:
        value, digest = reader_of(spec.kind)(context, spec)
        entries = tensor_entries(value, spec.text, digest)
        values.append(value)
        sources += entries
        types = [f"{e['shape'] or 'one number'} {e['dtype']}" for e in entries if e["dtype"]]
        notes.append(f"{spec.text} ({', '.join(types) or 'no tensor'})")
    value = values[0] if len(values) == 1 else _concatenate(values, specs)
    return Batch(value, tuple(sources), ", ".join(notes))


def _concatenate(values: list[Any], specs: Sequence[InputSpec]) -> Tensor:
    names = ", ".join(spec.text for spec in specs)
    for value, spec in zip(values, specs, strict=True):
        if not isinstance(value, Tensor) or not value.ndim:
            raise InputError(
                f"{spec.text} is not a single tensor with a first dimension, so {names} cannot be"
                " joined to a batch.",
                "Assign each to an argument: --input NAME=FILE.",
            )
    first, *others = values
    for other in others:
        if other.shape[1:] != first.shape[1:] or other.dtype != first.dtype:
            shapes = " and ".join(
                f"{shape_text(t.shape)} {str(t.dtype)[6:]}" for t in (first, other)
            )
            raise InputError(
                f"Several inputs are joined along the first dimension, but {shapes} do not fit"
                " together.",
                "Assign each to an argument: --input NAME=FILE or --input 0=FILE.",
            )
    return torch.cat(values)


def single_argument(value: Any) -> Any:
    """Return the only argument of a call value; None if it has several."""
    args, kwargs = as_call(value)
    return args[0] if len(args) == 1 and not kwargs else None
