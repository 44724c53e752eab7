"""What is asked of ``diff``, settled before anything heavy is imported.

Two files or two models; and which of the options that a model has belong to A, which to B.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.catalog import check_attn, check_model_spec, check_weights
from hookscope.specs.model_spec import EXPORTED, TORCHSCRIPT, is_weights_file
from hookscope.specs.output_path import holds_features, is_hookscope_file
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
    RunOptions,
    chosen_options,
)
from hookscope.specs.tolerances import check_tolerances

# Options of a model that may be given once for both or twice, A's and then B's; and what one that
# was not given is for the verbs that take a single model.
PAIRED_OPTIONS: dict[str, Any] = {
    **{"weights": "random", "rename": None, "model_args": None},
    **dict.fromkeys(("method", "attn", "dtype", "device")),
}
_INPUT = ("input", "shape", "preprocess", "size", "mean", "std")
MODEL_OPTIONS = (*PAIRED_OPTIONS, *_INPUT, "partial", "trust", "seed", "train", "leaves")
_HOLD_THEIR_OWN = (TORCHSCRIPT, EXPORTED)  # weights, and the arguments that they were built with


@dataclass(frozen=True)
class DiffRequest:
    """What is compared, and how.

    Attributes:
        a: a capture's file, or a model.
        b: what it is compared with, of the same kind.
        layers, types, depth, leaves: which layers; see ``LayerSelection``.
        what: which records; None for all.
        map: prefixes of A's names and what stands for them in B.
        atol, rtol: tolerances; None for those of the dtype.
        equal_nan: take NaN for equal to NaN.
        strict: demand that every record has a partner.
        input, shape, preprocess, size, mean, std: what both models are called with.
        weights, rename, partial, model_args, method, attn, trust, seed, dtype, device, train: of
            both models; where two values are given, A's and then B's.

    Raises:
        RequestError: a tolerance is negative or not finite.
    """

    a: Any
    b: Any
    layers: str | Iterable[str] = ()
    types: str | Iterable[str] = ()
    depth: int | None = None
    leaves: bool = False
    what: str | Iterable[str] | None = None
    map: Mapping[str, str] | None = None
    atol: float | None = None
    rtol: float | None = None
    equal_nan: bool = False
    strict: bool = False
    input: Any = None
    shape: Sequence[int] | None = None
    preprocess: str | None = None
    size: int | tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    weights: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()
    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    partial: bool = False
    model_args: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    method: str | Sequence[str] = ()
    attn: str | Sequence[str] = ()
    trust: bool = False
    seed: int = 0
    dtype: str | Sequence[str] = ()
    device: str | Sequence[str] = ()
    train: bool = False

    def __post_init__(self) -> None:
        check_tolerances(self.atol, self.rtol)

    @property
    def selection(self) -> LayerSelection:
        """The layers that are meant."""
        return LayerSelection(self.layers, self.types, self.depth, self.leaves)

    @property
    def model_options(self) -> list[str]:
        """Names of what was chosen that only models have."""
        chosen = chosen_options(self) | ({} if self.input is None else {"input": True})
        return [name for name in MODEL_OPTIONS if name in chosen and getattr(self, name) != ()]

    def requests(self) -> Iterator[Request]:
        """Yield the run of A and that of B, on the input as A takes it."""
        input = InputRequest(
            self.input, self.shape, self.preprocess, self.size, self.mean, self.std
        )
        for model, of_model, dtype, device in self._sides():
            yield Request(
                "diff",
                ModelRequest(model, trust=self.trust, **of_model),
                input=input,
                run=RunOptions(self.seed, dtype, device, train=self.train),
            )

    def _sides(self) -> Iterator[tuple[Any, dict[str, Any], str | None, str | None]]:
        words = (self.a, self.b)
        for word, side in zip(words, split_paired_options(vars(self), words), strict=True):
            dtype, device = side.pop("dtype"), side.pop("device")
            yield word, side, dtype, device


def are_captures(a: Any, b: Any) -> bool:
    """Whether both words are files that hookscope wrote; False if neither is.

    Raises:
        RequestError: one is a capture and the other a model, or one is a folder of features.
    """
    for side in (a, b):
        if isinstance(side, str | os.PathLike) and holds_features(side):
            raise RequestError(
                f"{side} is a folder of features, and captures or models are compared.",
                f"Make a file of it: hookscope export {shlex.quote(os.fspath(side))}",
            )
    found = [_is_capture(side) for side in (a, b)]
    if found[0] != found[1]:
        capture, model = (a, b) if found[0] else (b, a)
        word = "MODEL"
        if isinstance(model, str | os.PathLike):
            word = os.fspath(model)
            check_model_spec(word)  # which may be a file that is not there
        raise RequestError(
            f"{capture} is a capture and {word} is a model; two of a kind are compared.",
            f"Capture the model first, on the same input: hookscope capture {word}",
        )
    return found[0]


def _is_capture(word: Any) -> bool:
    from pathlib import Path

    return isinstance(word, str | os.PathLike) and is_hookscope_file(Path(word))


def check_capture_options(given: Iterable[str]) -> None:
    """Refuse what only models can be given, rather than pass over it in silence.

    Args:
        given: keywords that were given.

    Raises:
        RequestError: one of them is among ``MODEL_OPTIONS``.
    """
    idle = [name for name in MODEL_OPTIONS if name in given]
    if idle:
        name = "--model-arg" if idle[0] == "model_args" else f"--{idle[0]}"
        raise RequestError(
            f"{name} is for models, and two captures are compared.",
            "Leave it out; a file holds what was recorded.",
        )


def split_paired_options(
    values: Mapping[str, Any], words: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a model as A and as B get them, each as a verb of one model takes it.

    What is given once counts for both. But weights, their ``rename`` and ``partial``, and arguments
    go only to what can take them: a scripted or exported file holds its own.

    Raises:
        RequestError: an option is given more than twice.
    """
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, default in PAIRED_OPTIONS.items():
        for side, value in zip(sides, _in_two(name, values[name], default), strict=True):
            side[name] = value
    holding = [_holds_its_own(word) for word in words]
    for name in ("weights", "model_args"):
        if len(_several(values[name])) < 2 and holding.count(True) == 1:
            sides[holding.index(True)][name] = PAIRED_OPTIONS[name]
    for side in sides:
        from_file = is_weights_file(os.fspath(side["weights"]))
        side["partial"] = values["partial"] and from_file
        side["rename"] = side["rename"] if from_file else None
    for name in ("rename", "partial"):
        if values[name] and not any(side[name] for side in sides):
            sides[0][name] = values[name]  # for the loader to refuse
    return sides


def check_models(values: Mapping[str, Any]) -> None:
    """Refuse words that name no model, and weights that it cannot have."""
    words = (values["a"], values["b"])
    specs = [check_model_spec(word) for word in words]
    for spec, side in zip(specs, split_paired_options(values, words), strict=True):
        check_weights(spec, side["weights"])
        check_attn(spec, side["attn"])


def parse_pairs_for_both(
    pairs: Sequence[str], read: Callable[[Sequence[str]], dict[str, Any]]
) -> dict[str, Any] | tuple[dict[str, Any], dict[str, Any]]:
    """Read ``KEY=VALUE`` words, of which a key that comes twice is A's and then B's.

    >>> from hookscope.specs.model_spec import parse_assignments
    >>> parse_pairs_for_both(["width=8", "depth=2", "width=16"], parse_assignments)
    ({'width': '8', 'depth': '2'}, {'width': '16', 'depth': '2'})
    """
    first: dict[str, str] = {}
    again = []
    for pair in pairs:
        key = pair.partition("=")[0]
        if key in first:
            again.append(pair)
        else:
            first[key] = pair
    a = read(list(first.values()))
    return (a, a | read(again)) if again else a


def _in_two(name: str, value: Any, default: Any) -> tuple[Any, Any]:
    found = _several(value)
    if len(found) > 2:
        raise RequestError(
            f"--{name} is given {len(found)} times, and there are two models.",
            "Give it once for both, or twice: A's and then B's.",
        )
    one, two = (found * 2)[:2] if found else (default, default)
    return one, two


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _holds_its_own(word: Any) -> bool:
    return (
        isinstance(word, str | os.PathLike)
        and check_model_spec(os.fspath(word)).source in _HOLD_THEIR_OWN
    )
