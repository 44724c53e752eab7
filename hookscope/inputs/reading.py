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
from hookscope.files.detect import AGAIN, UNKNOWN, describe_file
from hookscope.sources.layouts import seeded
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.specs.input import STDIN, InputWord
from hookscope.specs.model import ended
from hookscope.tensors.nested import as_call, bits_of, walk

Numbers = Sequence[float] | None


@dataclass(frozen=True)
class Asked:
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
    source: torch.Generator = field(default_factory=lambda: seeded(0))


@dataclass(frozen=True)
class Piece:
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
        raise InputError(f"{called(path)} cannot be read: {exc.strerror}.") from exc
    if not data and path == STDIN:
        raise InputError(
            "Nothing came on standard input.",
            "Pipe an image in: hookscope capture --input - < img.png",
        )
    if not data:
        raise InputError(f"{called(path)} is empty.", AGAIN)
    if most is not None and len(data) > most:
        raise InputError(
            f"{called(path)} is longer than {most >> 20} MiB, which is the most that is read of its"
            " kind.",
            repair,
        )
    return data


def called(path: str) -> str:
    """What to call a file in an error."""
    return "What came from standard input" if path == STDIN else f"The file {path!r}"


@contextmanager
def blaming(path: str, what: str) -> Iterator[None]:
    """Turn whatever a decoder raises into one sentence: the file is damaged, or no ``what``."""
    try:
        yield
    except HookscopeError:
        raise
    except MemoryError as exc:
        raise InputError(
            f"{called(path)} says that it needs more memory than there is.", AGAIN
        ) from exc
    except Exception as exc:  # on damaged files decoders raise nearly anything
        kind = describe_file(path)[0]
        looks = "" if kind in (UNKNOWN, what) else f"; it looks like {kind}"
        why = ended(cause(exc).partition("\n")[0])
        raise InputError(f"{called(path)} cannot be read as {what}{looks}: {why}", AGAIN) from exc


def sha256(data: bytes) -> str:
    """Return the hash of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def described(tensor: Tensor, word: str, digest: str | None) -> dict[str, Any]:
    """Return what is recorded of a tensor that was read; see ``Batch``."""
    return {
        "shape": "x".join(map(str, tensor.shape)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "word": word,
        "sha256": digest,
    }


def sources_of(value: Any, word: str, digest: str | None) -> tuple[dict[str, Any], ...]:
    """Return what is recorded of each tensor in ``value``; several bear the ``part`` they are.

    Args:
        value: what a word became.
        word: that word.
        digest: of its file; where there is none, each tensor's values are hashed.
    """
    found = list(walk(value))
    made = tuple(described(t, word, digest or hash_of(t)) for _, t in found)
    if not made:
        return ({"shape": "", "dtype": "", "word": word, "sha256": digest},)
    if len(made) == 1:
        return made
    return tuple(
        entry | {"part": ".".join(path)} for entry, (path, _) in zip(made, found, strict=True)
    )


def hash_of(tensor: Tensor) -> str | None:
    """Hash of a tensor's bytes; None for one that has no plain ones (sparse, on meta)."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    return sha256(bits_of(tensor.cpu()).numpy().tobytes())


def shapes(sources: Sequence[dict[str, Any]]) -> str:
    """Return the shapes in words: ``1x3x8x8 and 2``."""
    return " and ".join(source["shape"] or "one number" for source in sources)


Open = Callable[[Asked, InputWord], tuple[Any, str | None]]


def joined(asked: Asked, words: Sequence[InputWord], open_one: Callable[..., Open]) -> Piece:
    """Read words that hold tensors; several for one place are joined along the first dimension.

    Args:
        asked: the model and the choices.
        words: all for one place.
        open_one: takes a word's kind, gives the function that reads a word to its value and hash.

    Raises:
        InputError: several words, of which one is no lone tensor, or of shapes that do not join.
    """
    values: list[Any] = []
    sources: list[dict[str, Any]] = []
    told = []
    for word in words:
        value, digest = open_one(word.kind)(asked, word)
        made = sources_of(value, word.word, digest)
        values.append(value)
        sources += made
        kinds = [f"{s['shape'] or 'one number'} {s['dtype']}" for s in made if s["dtype"]]
        told.append(f"{word.word} ({', '.join(kinds) or 'no tensor'})")
    value = values[0] if len(values) == 1 else _together(values, words)
    return Piece(value, tuple(sources), ", ".join(told))


def _together(values: list[Any], words: Sequence[InputWord]) -> Tensor:
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


def lone_call(value: Any) -> Any:
    """The one argument of a call value, for words that name the place of one; None if several."""
    args, kwargs = as_call(value)
    return args[0] if len(args) == 1 and not kwargs else None
