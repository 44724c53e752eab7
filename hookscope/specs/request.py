"""What is asked for, as typed values that are checked when they are made; without torch.

The functions of ``hookscope.api`` make a request of their keywords, and ``execution.prepare`` makes
a run of it. The fields of a part have the names and the defaults of the keywords, so that
``chosen_options`` can tell what differs from the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from hookscope.errors import LossError, RequestError
from hookscope.specs.catalog import check_attn, check_weights
from hookscope.specs.choices import DEFAULT_MODEL, DTYPES, PENALTIES
from hookscope.specs.edit import Edit, check_comparison, check_second_order, parse_edits
from hookscope.specs.hook_spec import resolve_hook_kinds
from hookscope.specs.input_spec import IMAGE_OPTIONS, NO_IMAGE, may_name_image, reject_image_options
from hookscope.specs.losses import (
    FORMULAS,
    check_custom_loss_options,
    check_reduction,
    check_target,
    reject_loss_options,
)
from hookscope.specs.model_spec import LIVE, ModelSpec, may_name_function, parse_model
from hookscope.specs.run_options import check_device_map

Text = str | os.PathLike[str]
Hook = str | Callable[..., Any]
Hooks = Hook | Mapping[str, Hook] | Iterable[Hook]

# In the options of a file's metadata, the one key of a mapping that stands for an object which only
# Python can hold; with its class. No KEY=VALUE has such a key.
ONLY_PYTHON = "python object"


def chosen_options(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass whose values are not the defaults, as JSON can hold them.

    The model and the input are left out: the metadata describe them by themselves.

    Example:
        >>> chosen_options(RunOptions(seed=3))
        {'seed': 3}
    """
    plain = {
        field.name: (_plain(getattr(part, field.name)), _plain(field.default))
        for field in fields(part)
        if field.name not in ("model", "input")
    }
    return {name: value for name, (value, default) in plain.items() if value != default}


def as_texts(texts: Text | Iterable[Text]) -> tuple[str, ...]:
    """Return the texts given; a lone one, or a path, need not stand in a list.

    >>> as_texts("fc"), as_texts(["a", "b"])
    (('fc',), ('a', 'b'))
    """
    listed = [texts] if isinstance(texts, str | os.PathLike) else texts
    return tuple(os.fspath(text) for text in listed)


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {ONLY_PYTHON: type(value).__name__}  # a plain text could be mistaken for a value


@dataclass(frozen=True)
class ModelRequest:
    """A model, and how it is loaded where it is named.

    Attributes:
        model: its spec, such as ``resnet18`` or ``FILE.py:NAME``, or the module itself.
        weights: ``random``, ``default``, a name of pretrained weights, or a file.
        rename: prefixes of names in the file and what stands for them in the model.
        partial: take from the file what fits and leave the rest as built.
        model_args: keyword arguments for the class or factory.
        method: the method to run in place of ``forward``.
        attn: how a model of transformers computes attention.
        trust: open an exported program even if it carries pickles that run code.

    Raises:
        ModelError: the spec names a missing file, or something that is no model.
        RequestError: the model has no such weights or no choice of attention; or it is a module,
            which is loaded already.

    Example:
        >>> ModelRequest("resnet18").named
        True
    """

    model: Any = DEFAULT_MODEL
    weights: Text = "random"
    rename: Mapping[str, str] | None = None
    partial: bool = False
    model_args: Mapping[str, Any] | None = None
    method: str | None = None
    attn: str | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        if self.spec is not None:
            check_attn(self.spec, self.attn)
            check_weights(self.spec, os.fspath(self.weights))
            return
        if self.weights != "random" or any(
            (self.rename, self.partial, self.model_args, self.method, self.attn)
        ):
            raise RequestError(
                "weights, rename, partial, model_args, method and attn belong to a model given by"
                " name.",
                "Load the weights into the module before you pass it; hookscope.record records"
                " whatever method you call.",
            )

    @property
    def named(self) -> bool:
        """Whether the model is given by its spec, and is yet to be loaded."""
        return isinstance(self.model, str | os.PathLike)

    @cached_property
    def spec(self) -> ModelSpec | None:
        """The spec, parsed; None for a module."""
        return parse_model(os.fspath(self.model)) if self.named else None

    @property
    def source(self) -> str:
        """Where the model comes from: ``torchvision``, ``file``, ..., or ``live``."""
        return LIVE if self.spec is None else self.spec.source


@dataclass(frozen=True)
class LayerSelection:
    """Which layers to use: all, or those that meet every condition.

    Attributes:
        layers: patterns of their names; a leading ``!`` takes away.
        types: class names or globs of them.
        depth: at most this deep; 0 is the model itself.
        leaves: modules without children only.

    Example:
        >>> LayerSelection("fc").layers
        ('fc',)
    """

    layers: Iterable[str] = ()
    types: Iterable[str] = ()
    depth: int | None = None
    leaves: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", as_texts(self.layers))
        object.__setattr__(self, "types", as_texts(self.types))

    @property
    def everything(self) -> bool:
        """Whether no condition on a layer's name, type or depth is given."""
        return not (self.layers or self.types or self.depth is not None)


@dataclass(frozen=True)
class InputRequest:
    """What the model is called with.

    Attributes:
        input: specs of files and of made tensors, a call value, or None for the model's own example
            or noise.
        shape: of that noise.
        preprocess: ``imagenet`` or ``none``; None for the weights' own recipe.
        size: height and width an image is brought to, in pixels.
        mean: subtracted from each channel of an image whose values lie from 0 to 1.
        std: what each channel is then divided by.

    Raises:
        InputError: choices for images are made, and no image is given.
    """

    input: Any = None
    shape: Sequence[int] | None = None
    preprocess: str | None = None
    size: int | tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        chosen = any(getattr(self, name) is not None for name in IMAGE_OPTIONS)
        if chosen and not self._may_hold_images():
            reject_image_options(vars(self), NO_IMAGE)

    def _may_hold_images(self) -> bool:
        values = self.input
        if values is None or isinstance(values, str | os.PathLike):
            values = [] if values is None else [values]
        if not isinstance(values, list | tuple):
            return True  # a tensor or a Dataset, which is looked at when the batch is built
        specs = [os.fspath(one) for one in values if isinstance(one, str | os.PathLike)]
        return len(specs) < len(values) or any(map(may_name_image, specs))


@dataclass(frozen=True)
class RunOptions:
    """How the model runs.

    Attributes:
        seed: of random weights, noise and dropout, from 0 to 2**63 - 1.
        dtype: ``float32``, ``float64``, ``float16`` or ``bfloat16``; None for the model's own.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``; None for ``cpu``, or where a module is.
        device_map: how a model that is larger than one device is spread over several.
        max_memory: bytes of weights that a device gets then at most.
        train: in train mode.
        generate: how many tokens a language model is to add.

    Raises:
        RequestError: the seed or the dtype is wrong.
    """

    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None
    max_memory: Mapping[str, int] | None = None
    train: bool = False
    generate: int | None = None

    def __post_init__(self) -> None:
        seed: object = self.seed
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise RequestError(f"{seed!r} is no seed.", "Give a whole number from 0 to 2**63 - 1.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise RequestError(
                f"{self.dtype!r} is no dtype to run a model in.", f"Use {', '.join(DTYPES)}."
            )


@dataclass(frozen=True)
class Interventions:
    """What is done to a run: edits, and hooks of the user's.

    Attributes:
        edits: of activations, each ``GLOB=OP:ARG``.
        grad_edits: of gradients at modules' outputs.
        compare: run without them too, and record what differs.
        hooks: functions or their specs, or a dict from globs to either.
        hook_args: further arguments for the hooks.
        hook_kind: one kind for all hooks, or one for each.

    Raises:
        EditError: an edit cannot be read, or there is nothing to compare with.
        RequestError: there are kinds or arguments of hooks, and no hook.
    """

    edits: Iterable[str] = ()
    grad_edits: Iterable[str] = ()
    compare: bool = False
    hooks: Hooks = ()
    hook_args: Mapping[str, Any] | None = None
    hook_kind: Iterable[str] = ()

    def __post_init__(self) -> None:
        for name in ("edits", "grad_edits", "hook_kind"):
            object.__setattr__(self, name, as_texts(getattr(self, name)))
        if not isinstance(self.hooks, Mapping | str) and not callable(self.hooks):
            object.__setattr__(self, "hooks", tuple(self.hooks))
        check_comparison(self.compare, self.value_edits, self.gradient_edits, self.hooks)

    @cached_property
    def value_edits(self) -> tuple[Edit, ...]:
        """The edits of activations, parsed."""
        return parse_edits(self.edits)

    @cached_property
    def gradient_edits(self) -> tuple[Edit, ...]:
        """The edits of gradients, parsed."""
        return parse_edits(self.grad_edits, gradients=True)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of hooks that were given."""
        return tuple(self.hook_kind)

    @property
    def hook_count(self) -> int:
        """How many hooks there are."""
        return 1 if isinstance(self.hooks, str) or callable(self.hooks) else len(tuple(self.hooks))


@dataclass(frozen=True)
class LossRequest:
    """What is differentiated.

    Attributes:
        loss: its name, a function or the spec of one; None for ``ce``, and ``sum`` with a penalty.
        target: a class, several for a batch, a label, ``argmax``, ``uniform`` or a tensor file.
        reduction: ``mean``, ``sum`` or ``batchmean``; None for the loss's own.
        raw: the loss straight on the model's output, without softmax or sigmoid.
        penalty: ``gp`` for the gradient penalty of the loss in place of the loss.
        forward_only: leave the backward pass out.

    Raises:
        LossError: the choices do not go together, or the target's file is missing.
    """

    loss: str | Callable[..., Any] | None = None
    target: Any = "argmax"
    reduction: str | None = None
    raw: bool = False
    penalty: str | None = None
    forward_only: bool = False

    def __post_init__(self) -> None:
        if self.forward_only:
            reject_loss_options(self.loss, self.target, self.reduction, self.raw)
        if self.penalty is not None and self.penalty not in PENALTIES:
            raise LossError(
                f"There is no penalty called {self.penalty!r}.", f"There is {PENALTIES[0]}."
            )
        if self.penalty and self.name in FORMULAS and self.reduction not in (None, "sum"):
            raise LossError(
                f"With --penalty the score is summed over the batch, not {self.reduction}.",
                "Leave out --reduction: the norm is then that of each sample's own gradient.",
            )
        if self.name in FORMULAS:
            check_reduction(FORMULAS[self.name], self.reduction)
        elif callable(self.loss) or may_name_function(self.name):
            check_custom_loss_options(self.name, self.reduction, self.raw)
        check_target(self.target)

    @property
    def name(self) -> str:
        """The name of the loss, or of the function that computes it."""
        if callable(self.loss):
            return getattr(self.loss, "__name__", type(self.loss).__name__)
        return self.loss or ("sum" if self.penalty else "ce")

    @property
    def is_default(self) -> bool:
        """Whether no loss, target or way to take it was chosen."""
        return not chosen_options(replace(self, forward_only=False))


@dataclass(frozen=True)
class Request:
    """One run of one model.

    Attributes:
        command: the command, or function of the API, that asks.
        model: what runs.
        layers: which of its layers are meant.
        input: what it is called with.
        run: how it runs.
        interventions: what is done to the run.
        loss: what is differentiated; None for a forward pass alone.

    Raises:
        RequestError: parts of it do not go together.

    Example:
        >>> request = Request("capture", ModelRequest("resnet18"), LayerSelection(["layer3.*"]))
        >>> request.run.seed, request.layers.layers
        (0, ('layer3.*',))
    """

    command: str
    model: ModelRequest
    layers: LayerSelection = LayerSelection()
    input: InputRequest = InputRequest()
    run: RunOptions = RunOptions()
    interventions: Interventions = Interventions()
    loss: LossRequest | None = None

    def __post_init__(self) -> None:
        run, changes = self.run, self.interventions
        if run.device_map is not None or run.max_memory:
            check_device_map(run.device_map, run.max_memory, run.device, self.model.source)
        if run.device_map is not None and not self.model.named:
            raise RequestError(
                "A device map is for a model given by name, and this one is a live module.",
                "Spread it yourself before you hand it over: accelerate.dispatch_model(model,"
                " accelerate.infer_auto_device_map(model)).",
            )
        if changes.kinds or changes.hook_count:
            resolve_hook_kinds(changes.kinds, changes.hook_count, verb=self.command)
        if changes.hook_args and not changes.hook_count:
            raise RequestError("An argument for a hook is given and no hook.", "Add --hook.")
        penalty = self.loss.penalty if self.loss is not None else None
        check_second_order(penalty, changes.gradient_edits, changes.kinds)

    def chosen(self, options: Any = None) -> dict[str, Any]:
        """Return what was chosen beyond the defaults, by keyword, for the metadata of a result.

        Args:
            options: a dataclass of what only this command has.
        """
        parts = [self.model, self.layers, self.input, self.run, self.interventions]
        parts += [part for part in (self.loss, options) if part is not None]
        return {name: value for part in parts for name, value in chosen_options(part).items()}
