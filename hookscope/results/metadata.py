"""What a file of results tells beside its records, as types: its readers rely on no more than this.

Every key may be missing, as a file may come of ``hookscope.record`` or of a later version.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, TypedDict

from hookscope.files.strict_json import Number, type_error


class Model(TypedDict, total=False):
    """The model: its word, where it came from, and its weights."""

    word: str
    source: str
    weights: str | None
    blake3: str | None


class Input(TypedDict, total=False):
    """One entry for each input; those from files have a hash, images may have their two ends."""

    word: str
    shape: str
    dtype: str
    sha256: str | None
    part: Any
    black: list[float]
    white: list[float]


class Argument(TypedDict, total=False):
    """One tensor that the model was called with."""

    name: str
    shape: list[int]
    dtype: str


class Likely(TypedDict):
    """One of a classifier's likeliest classes."""

    index: int
    label: str | None
    probability: Number | None


class _Attention(TypedDict):
    key: str


class Attention(_Attention, total=False):
    """How the weights of one attention were come by; the last two where they were recomputed."""

    difference: float
    tolerance: float


class EditMade(TypedDict):
    """An edit, and the keys of the tensors that it changed."""

    edit: str
    changed: list[str]


class _Moved(TypedDict):
    largest: Number | None
    relative: Number | None


class OutputMoved(_Moved):
    """How far a tensor of the model's output moved."""

    name: str


class RecordMoved(_Moved):
    """How far a recorded tensor moved."""

    key: str


class TopMoved(TypedDict):
    """The likeliest classes of each image, without edits and with them."""

    unedited: list[list[Likely]]
    edited: list[list[Likely]]


class Effect(TypedDict, total=False):
    """What the edits did; see ``execution/edit_effect.py``."""

    output: list[OutputMoved]
    drift: list[RecordMoved]
    top: TopMoved


class _Computed(TypedDict):
    name: str
    formula: str
    value: Number


class Loss(_Computed, total=False):
    """The loss that the gradients are of."""

    reduction: str | None
    target: str | None


class Penalty(_Computed):
    """The penalty in the loss's place, and the norms that it is made of."""

    norms: list[Number]


# The optimizer of a step, and what it was made with. In a body, ``class`` is a word of Python's.
Optimizer = TypedDict("Optimizer", {"class": str, "arguments": dict[str, Any]})


class Metadata(TypedDict, total=False):
    """All that a file tells of a run."""

    command: str
    options: dict[str, Any]
    model: Model
    inputs: list[Input]
    arguments: list[Argument]
    seed: int | None
    device: str | None
    dtype: str | None
    training: bool
    versions: dict[str, str]
    verified: bool
    failed: str
    top: list[list[Likely]]
    attention: list[Attention]
    edits: list[EditMade]
    grad_edits: list[EditMade]
    effect: Effect
    loss: Loss
    penalty: Penalty
    optimizer: Optimizer


def find_damage(told: dict[str, Any], keys: Container[str]) -> str:
    """Return what is wrong with a file's metadata: a type, or parts that belong to no other part.

    Args:
        told: the metadata.
        keys: those of the recorded tensors.

    Returns:
        The first thing found; empty if there is none.
    """
    if wrong := type_error(told, Metadata, "metadata"):
        return wrong
    if any(
        "difference" in entry and not entry.get("tolerance") for entry in told.get("attention", ())
    ):
        return "metadata.attention has a difference without tolerance"
    effect = told.get("effect", {})
    gone = [entry["key"] for entry in effect.get("drift", ()) if entry["key"] not in keys]
    if gone:
        return f"metadata.effect.drift has {gone[0]!r}, which is not recorded"
    top = effect.get("top", {"unedited": [], "edited": []})
    before, after = ([len(image) for image in top[name]] for name in ("unedited", "edited"))
    return "" if before == after else "metadata.effect.top has classes without partners"
