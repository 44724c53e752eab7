"""What is asked of ``diff``, settled before anything heavy is imported.

Two files or two models; and which of the options that a model has belong to A, which to B.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookscope.errors import RequestError
from hookscope.outputs import holds_features, is_ours
from hookscope.sources.catalog import check, check_weights
from hookscope.spec import EXPORTED, TORCHSCRIPT, is_weights_file

# Options of a model that may be given once for both or twice, A's and then B's; and what one that
# was not given is for the verbs that take a single model.
DOUBLE: dict[str, Any] = {
    **{"weights": "random", "rename": None, "model_args": None},
    **dict.fromkeys(("method", "attn", "dtype", "device")),
}
_INPUT = ("input", "shape", "preprocess", "size", "mean", "std")
OF_MODELS = (*DOUBLE, *_INPUT, "partial", "trust", "seed", "train", "leaves")
_HOLD_THEIR_OWN = (TORCHSCRIPT, EXPORTED)  # weights, and the arguments that they were built with


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
            check(word)  # which may be a file that is not there
        raise RequestError(
            f"{capture} is a capture and {word} is a model; two of a kind are compared.",
            f"Capture the model first, on the same input: hookscope capture {word}",
        )
    return found[0]


def _is_capture(word: Any) -> bool:
    from pathlib import Path

    return isinstance(word, str | os.PathLike) and is_ours(Path(word))


def refuse_for_captures(given: Iterable[str]) -> None:
    """Refuse what only models can be given, rather than pass over it in silence.

    Args:
        given: keywords that were given.

    Raises:
        RequestError: one of them is among ``OF_MODELS``.
    """
    idle = [name for name in OF_MODELS if name in given]
    if idle:
        name = "--model-arg" if idle[0] == "model_args" else f"--{idle[0]}"
        raise RequestError(
            f"{name} is for models, and two captures are compared.",
            "Leave it out; a file holds what was recorded.",
        )


def both(values: Mapping[str, Any], words: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a model as A and as B get them, each as a verb of one model takes it.

    What is given once counts for both. But weights, their ``rename`` and ``partial``, and arguments
    go only to what can take them: a scripted or exported file holds its own.

    Raises:
        RequestError: an option is given more than twice.
    """
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, default in DOUBLE.items():
        for side, value in zip(sides, _in_two(name, values[name], default), strict=True):
            side[name] = value
    holding = [_holds_its_own(word) for word in words]
    for name in ("weights", "model_args"):
        if len(_several(values[name])) < 2 and holding.count(True) == 1:
            sides[holding.index(True)][name] = DOUBLE[name]
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
    specs = [check(word) for word in words]
    for spec, side in zip(specs, both(values, words), strict=True):
        check_weights(spec, side["weights"])


def each_key(
    pairs: Sequence[str], read: Callable[[Sequence[str]], dict[str, Any]]
) -> dict[str, Any] | tuple[dict[str, Any], dict[str, Any]]:
    """Read ``KEY=VALUE`` words, of which a key that comes twice is A's and then B's.

    >>> from hookscope.spec import parse_assignments
    >>> each_key(["width=8", "depth=2", "width=16"], parse_assignments)
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
    return isinstance(word, str | os.PathLike) and check(os.fspath(word)).source in _HOLD_THEIR_OWN
