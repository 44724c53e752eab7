"""The types of a capture's metadata, on which its readers rely; any key may be missing."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypedDict

from hookscope.files.strict_json import Number, type_error


class AdapterMetadata(TypedDict):
    """An adapter of peft; ``changes`` is whether it changes a weight, None if that is not known."""

    folder: str
    type: str
    layers: int
    changes: bool | None
    blake3: str | None


class ModelMetadata(TypedDict, total=False):
    """The model: its spec, its source, its weights, and an adapter if there is one."""

    spec: str
    source: str
    weights: str | None
    blake3: str | None
    adapter: AdapterMetadata


class InputMetadata(TypedDict, total=False):
    """One input; files have a hash, images may have the values of black and white."""

    spec: str
    shape: str
    dtype: str
    sha256: str | None
    part: Any
    black: list[float]
    white: list[float]


class ArgumentMetadata(TypedDict, total=False):
    """One tensor that the model was called with."""

    name: str
    shape: list[int]
    dtype: str


class _TokenIds(TypedDict):
    argument: str
    ids: list[list[int]]
    padding: list[list[int]]


class TokensMetadata(_TokenIds, total=False):
    """The tokens of one argument by row: ids, positions that are padding, and texts if known."""

    texts: list[list[str]]


class StoredPositions(TypedDict):
    """The positions of a tensor that are stored: of each row, along ``dim`` of ``length``."""

    key: str
    dim: int
    length: int
    rows: list[list[int]]


class _Logit(TypedDict, total=False):
    """The score from which a probability is computed; older files do not have it."""

    logit: Number | None


class ClassProbability(_Logit):
    """One of a classifier's most likely classes."""

    index: int
    label: str | None
    probability: Number | None


class TokenProbability(_Logit):
    """One of the most likely next tokens; ``token`` is its text, None without a vocabulary."""

    id: int
    token: str | None
    probability: Number | None


class _Ended(TypedDict, total=False):
    """Whether the last token is an end-of-text token; older files do not say it."""

    ended: bool


class GeneratedText(_Ended):
    """The tokens that were generated after one row; texts are None without a vocabulary."""

    ids: list[int]
    tokens: list[str] | None
    text: str | None


class _AttentionKey(TypedDict):
    key: str


class AttentionMetadata(_AttentionKey, total=False):
    """The weights of one attention call; the numbers are present if they were recomputed."""

    difference: float
    tolerance: float


class AppliedEdit(TypedDict):
    """An edit, and the keys of the tensors that it changed."""

    edit: str
    changed: list[str]


class TensorChange(TypedDict):
    """The change of a tensor, in its largest entry and relative to its norm."""

    largest: Number | None
    relative: Number | None


class OutputChange(TensorChange):
    """The change of a tensor of the model's output."""

    name: str


class RecordChange(TensorChange):
    """The change of a recorded tensor."""

    key: str


class TopClasses(TypedDict):
    """The most likely classes of each image, without edits and with them."""

    unedited: list[list[ClassProbability]]
    edited: list[list[ClassProbability]]


class TopTokens(TypedDict):
    """The most likely next tokens after each row, without edits and with them."""

    unedited: list[list[TokenProbability]]
    edited: list[list[TokenProbability]]


class EditEffect(TypedDict, total=False):
    """The effect of the edits; see ``execution/edit_effect.py``."""

    output: list[OutputChange]
    drift: list[RecordChange]
    top: TopClasses
    next_tokens: TopTokens


class _Value(TypedDict):
    name: str
    formula: str
    value: Number


class LossMetadata(_Value, total=False):
    """The loss whose gradients were computed."""

    reduction: str | None
    target: str | None


class PenaltyMetadata(_Value):
    """The penalty that replaced the loss, and the norms in it."""

    norms: list[Number]


class _ClassScore(TypedDict):
    index: int | None
    label: str | None
    score: Number
    probability: Number | None


class CamImage(_ClassScore):
    """One image of a class activation map: its class, and where the map peaks.

    ``index`` is None if the class differs from position to position, ``peak`` and ``pixel`` if no
    entry of the map is positive.
    """

    spec: str
    peak: list[int] | None
    pixel: list[int] | None
    largest: Number


class CamUnit(TypedDict):
    """The unit of a layer with the highest activation; ``field`` has the first and last position.

    ``unit`` is its place in the output, without the batch.
    """

    layer: str
    unit: list[int]
    activation: Number
    field: list[list[int]]


class CamObject(CamImage, total=False):
    """One image with a box: left, top, right, bottom, of an object or of a receptive field."""

    box: list[float]
    strongest: CamUnit
    detection: int
    detections: int


class CamLayer(TypedDict, total=False):
    """The layer of a class activation map, and its grid."""

    layer: str
    type: str
    call: int
    part: str
    grid: list[int]
    channels: int
    layout: str
    prefix: int
    upsampling: str


class CamMetadata(CamLayer, total=False):
    """A class activation map; keys of other methods are missing."""

    method: str
    formula: str
    paper: str
    target: str
    scores: str
    input: str
    image: str
    images: list[CamObject]
    layers: list[str]
    tokens: list[list[int]]
    relus: int
    unguided: dict[str, int]
    steps: int
    baseline: str
    gap: list[Number | None]
    patch: int | list[int]


class ChannelSummary(TypedDict):
    """The statistics of all channels of a layer as one; None without a finite value."""

    channels: int
    values: int
    mean: Number | None
    std: Number | None
    min: Number | None
    median: Number | None
    max: Number | None
    dead: int
    nan: int
    inf: int


class LayerStatistics(ChannelSummary):
    """The statistics of a layer over a dataset."""

    key: str
    module: str
    type: str
    call: int
    what: str
    kind: str


# The optimizer of a step, and its arguments. In a class body ``class`` would be a syntax error.
OptimizerMetadata = TypedDict("OptimizerMetadata", {"class": str, "arguments": dict[str, Any]})


class ExpertCounts(TypedDict):
    """The tokens that each expert gets, by a router's output of this key."""

    key: str
    tokens: list[int]


class Metadata(TypedDict, total=False):
    """The metadata of a run."""

    command: str
    options: dict[str, Any]
    model: ModelMetadata
    inputs: list[InputMetadata]
    arguments: list[ArgumentMetadata]
    tokens: list[TokensMetadata]
    positions: list[StoredPositions]
    seed: int | None
    device: str | None
    dtype: str | None
    training: bool
    versions: dict[str, str]
    verified: bool
    failed: str
    top: list[list[ClassProbability]]
    next_tokens: list[list[TokenProbability]]
    generated: list[GeneratedText]
    attention: list[AttentionMetadata]
    experts: list[ExpertCounts]
    edits: list[AppliedEdit]
    grad_edits: list[AppliedEdit]
    effect: EditEffect
    loss: LossMetadata
    penalty: PenaltyMetadata
    optimizer: OptimizerMetadata
    columns: dict[str, list[Any]]


# The names of weights that came with the model: neither random nor from a file or a library.
OWN_WEIGHTS = ("as built", "as saved", "as given")


def has_random_weights(metadata: Mapping[str, Any]) -> bool:
    """Whether a run used random weights, so that the model was not trained."""
    model = metadata.get("model") or {}
    return bool(model.get("weights") == "random")


def image_size(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width of the input images or videos; None without images."""
    for argument in metadata.get("arguments") or ():
        shape: list[int] = argument.get("shape") or []
        # Other inputs of four dimensions are unlikely to have so few channels.
        if len(shape) in (4, 5) and 1 <= shape[1] <= 4:
            return shape[-2], shape[-1]
    return None


def find_damage(metadata: dict[str, Any], keys: Container[str]) -> str:
    """Return what is wrong with a file's metadata: a type, or a key that does not exist."""
    if wrong := type_error(metadata, Metadata, "metadata"):
        return wrong
    if any(
        "difference" in entry and not entry.get("tolerance")
        for entry in metadata.get("attention", ())
    ):
        return "metadata.attention has a difference without tolerance"
    if wrong := _token_damage(metadata.get("tokens", ())):
        return wrong
    effect = metadata.get("effect", {})
    unknown = [entry["key"] for entry in effect.get("drift", ()) if entry["key"] not in keys]
    if unknown:
        return f"metadata.effect.drift has {unknown[0]!r}, which is not recorded"
    tops: tuple[Mapping[str, list[list[Any]]], ...]
    tops = tuple(effect[name] for name in ("top", "next_tokens") if name in effect)
    for top in tops:
        before, after = ([len(row) for row in top[name]] for name in ("unedited", "edited"))
        if before != after:
            return "metadata.effect has different numbers of classes"
    return ""


def _token_damage(entries: Sequence[TokensMetadata]) -> str:
    """What is inconsistent in the tokens; empty if nothing is."""
    for entry in entries:
        ids, padding = entry["ids"], entry["padding"]
        lengths = {len(row) for row in (*ids, *entry.get("texts", ids))}
        if len(lengths) != 1 or {len(padding), len(entry.get("texts", ids))} != {len(ids)}:
            return "metadata.tokens has rows of different lengths"
        if any(not 0 <= position < max(lengths) for row in padding for position in row):
            return "metadata.tokens has padding outside the sequence"
    return ""
