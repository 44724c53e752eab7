"""What every reader of inputs is asked, what it gives, and the bytes that it reads."""

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
from hookscope.sources.layouts import seeded_generator
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.specs.input_spec import STDIN, InputSpec
from hookscope.specs.model_spec import end_sentence
from hookscope.tensors.nested import as_call, bits_of, walk

Numbers = Sequence[float] | None


@dataclass(frozen=True)
class ReadContext:
    """For which model something is read, and how its images are to be made.

    Attributes:
        loaded: the model.
        shape, preprocess, size, mean, std: as ``hookscope.capture`` takes them; for images alone.
        seed: of what is drawn.
        source: where made tensors are drawn from, one after the other.
    """

    loaded: LoadedModel
    shape: tuple[int, ...] | None = None
    preprocess: str | None = None
    size: Size | None = None
    mean: Numbers = None
    std: Numbers = None
    seed: int = 0
    source: torch.Generator = field(default_factory=lambda: seeded_generator(0))


@dataclass(frozen=True)
class ReadResult:
    """What was read from the words for one place.

    Attributes:
        value: a call value, or the one argument if the words name a place.
        sources: one plain dict for each tensor, and one at least; see ``Batch``.
        note: what was made of the words, for people.
        recipe: how images became tensors; None where there were no image files.
    """

    value: Any
    sources: tuple[dict[str, Any], ...]
    note: str
    recipe: Recipe | None = None


def read_bytes(path: str, most: int | None = None, repair: str = "") -> bytes:
    """Return the bytes of a file, or of standard input for ``-``.

    Args:
        path: the file.
        most: how many bytes at most; None for any number.
        repair: what to do about a longer file.

    Raises:
        InputError: it cannot be read, is empty or too long, or standard input is a terminal.
    """
    if path == STDIN and sys.stdin.isatty():
        raise InputError(
            "Standard input is a terminal, so there is no image in it.",
            "Send one: hookscope capture --input - < img.png",
        )
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
            data = file.read() if most is None else file.read(most + 1)
    except OSError as exc:
        raise InputError(f"{describe_path(path)} cannot be read: {exc.strerror}.") from exc
    if not data and path == STDIN:
        raise InputError(
            "Nothing came on standard input.",
            "Pipe an image in: hookscope capture --input - < img.png",
        )
    if not data:
        raise InputError(f"{describe_path(path)} is empty.", WRITE_AGAIN)
    if most is not None and len(data) > most:
        raise InputError(
            f"{describe_path(path)} is longer than {most >> 20} MiB, which is the most that is read of its"
            " kind.",
            repair,
        )
    return data


def describe_path(path: str) -> str:
    """What to call a file in an error."""
    return "What came from standard input" if path == STDIN else f"The file {path!r}"


@contextmanager
def decoding_errors(path: str, what: str) -> Iterator[None]:
    """Turn whatever a decoder raises into one sentence: the file is damaged, or no ``what``."""
    try:
        yield
    except HookscopeError:
        raise
    except MemoryError as exc:
        raise InputError(
            f"{describe_path(path)} says that it needs more memory than there is.", WRITE_AGAIN
        ) from exc
    except Exception as exc:  # on damaged files decoders raise nearly anything
        kind = describe_file(path)[0]
        looks = "" if kind in (UNKNOWN, what) else f"; it looks like {kind}"
        why = end_sentence(cause(exc).partition("\n")[0])
        raise InputError(
            f"{describe_path(path)} cannot be read as {what}{looks}: {why}", WRITE_AGAIN
        ) from exc


def sha256(data: bytes) -> str:
    """Return the hash of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def tensor_entry(tensor: Tensor, word: str, digest: str | None) -> dict[str, Any]:
    """Return what is recorded of a tensor that was read; see ``Batch``."""
    return {
        "shape": "x".join(map(str, tensor.shape)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "word": word,
        "sha256": digest,
    }


def tensor_entries(value: Any, word: str, digest: str | None) -> tuple[dict[str, Any], ...]:
    """Return what is recorded of each tensor in ``value``; several bear the ``part`` they are.

    Args:
        value: what a word became.
        word: that word.
        digest: of its file; where there is none, each tensor's values are hashed.
    """
    found = list(walk(value))
    made = tuple(tensor_entry(t, word, digest or tensor_sha256(t)) for _, t in found)
    if not made:
        return ({"shape": "", "dtype": "", "word": word, "sha256": digest},)
    if len(made) == 1:
        return made
    return tuple(
        entry | {"part": ".".join(path)} for entry, (path, _) in zip(made, found, strict=True)
    )


def tensor_sha256(tensor: Tensor) -> str | None:
    """Hash of a tensor's bytes; None for one that has no plain ones (sparse, on meta)."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    return sha256(bits_of(tensor.cpu()).numpy().tobytes())


def format_shapes(sources: Sequence[dict[str, Any]]) -> str:
    """Return the shapes in words: ``1x3x8x8 and 2``."""
    return " and ".join(source["shape"] or "one number" for source in sources)


OpenTensor = Callable[[ReadContext, InputSpec], tuple[Any, str | None]]


def read_joined(
    asked: ReadContext, words: Sequence[InputSpec], open_one: Callable[..., OpenTensor]
) -> ReadResult:
    """Read words that hold tensors; several for one place are joined along the first dimension.

    Args:
        asked: the model and the choices.
        words: all for one place.
        read_python: takes a word's kind, gives the function that reads a word to its value and hash.

    Raises:
        InputError: several words, of which one is no lone tensor, or of shapes that do not join.
    """
    values: list[Any] = []
    sources: list[dict[str, Any]] = []
    told = []
    for word in words:
        value, digest = open_one(word.kind)(asked, word)
        made = tensor_entries(value, word.word, digest)
        values.append(value)
        sources += made
        kinds = [f"{s['shape'] or 'one number'} {s['dtype']}" for s in made if s["dtype"]]
        told.append(f"{word.word} ({', '.join(kinds) or 'no tensor'})")
    value = values[0] if len(values) == 1 else _together(values, words)
    return ReadResult(value, tuple(sources), ", ".join(told))


def _together(values: list[Any], words: Sequence[InputSpec]) -> Tensor:
    names = ", ".join(word.word for word in words)
    for value, word in zip(values, words, strict=True):
        if not isinstance(value, Tensor) or not value.ndim:
            raise InputError(
                f"{word.word} holds no lone tensor with a first dimension, so that {names} cannot"
                " be joined to a batch.",
                "Say which argument each is for: --input NAME=FILE.",
            )
    first, *others = values
    for other in others:
        if other.shape[1:] != first.shape[1:] or other.dtype != first.dtype:
            shapes = " and ".join(
                f"{'x'.join(map(str, t.shape))} {str(t.dtype)[6:]}" for t in (first, other)
            )
            raise InputError(
                f"Several inputs make one batch along the first dimension, and {shapes} do not"
                " join.",
                "Say which argument each is for: --input NAME=FILE or --input 0=FILE.",
            )
    return torch.cat(values)


def single_argument(value: Any) -> Any:
    """The one argument of a call value, for words that name the place of one; None if several."""
    args, kwargs = as_call(value)
    return args[0] if len(args) == 1 and not kwargs else None
