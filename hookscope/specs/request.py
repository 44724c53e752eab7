"""A request: typed values that are checked when they are made, without torch.

The functions of ``hookscope.api`` build a request from their keywords, the command line builds the
same one from its options, and ``execution.prepare`` prepares a run of it. The fields of a part have
the names and the defaults of the keywords, so that ``chosen_options`` can find what differs from
the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from hookscope.errors import InputError, LossError, RequestError
from hookscope.specs.adapter_folder import check_adapter
from hookscope.specs.catalog import check_attn, check_model_spec, check_weights
from hookscope.specs.choices import DEFAULT_MODEL, PENALTIES
from hookscope.specs.edit import check_second_order
from hookscope.specs.input_spec import (
    IMAGE_OPTIONS,
    NO_IMAGE,
    TEXT,
    check_tokenizer,
    may_name_image,
    parse_inputs,
    reject_image_options,
)
from hookscope.specs.intervention_spec import Interventions, resolve_hook_kinds
from hookscope.specs.literal_arguments import join_arguments
from hookscope.specs.losses import (
    FORMULAS,
    check_custom_loss_options,
    check_loss_name,
    check_reduction,
    check_target,
    reject_loss_options,
)
from hookscope.specs.model_spec import LIVE, ONNX, ModelSpec, may_name_function, parse_function
from hookscope.specs.onnx_limits import check_onnx_model, check_onnx_optimize, check_onnx_run
from hookscope.specs.patterns import as_texts, check_patterns
from hookscope.specs.positions import Positions, find_positions, split_positions
from hookscope.specs.run_options import RunOptions, check_device_map

Text = str | os.PathLike[str]

# In the metadata of a file, the only key of a mapping that stands for a Python object; its value is
# the object's class. No KEY=VALUE has such a key.
ONLY_PYTHON = "python object"


def chosen_options(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as values for JSON.

    The model and the input are omitted: the metadata have entries of their own for them.

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


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {ONLY_PYTHON: type(value).__name__}  # a text could be mistaken for a value


@dataclass(frozen=True)
class ModelRequest:
    """A model, and how it is loaded if it is given by name.

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
    onnx_optimize: str | None = None
    adapter: Text | None = None

    def __post_init__(self) -> None:
        check_onnx_optimize(self.source, self.onnx_optimize)
        check_adapter(self.spec, self.adapter)
        if self.spec is not None:
            check_attn(self.spec, self.attn)
            join_arguments(self.spec.text, self.spec.arguments, self.model_args)
            if self.source == ONNX:
                check_onnx_model(
                    self.spec.text,
                    weights=os.fspath(self.weights) != "random",
                    rename=self.rename,
                    partial=self.partial,
                    model_args=self.model_args,
                    method=self.method not in (None, "forward"),
                )
            check_weights(self.spec, os.fspath(self.weights))
            return
        if self.weights != "random" or any(
            (self.rename, self.partial, self.model_args, self.method, self.attn)
        ):
            raise RequestError(
                "weights, rename, partial, model_args, method and attn are only for a model given"
                " by name, not for a module.",
                "Load the weights into the module before you pass it; hookscope.record records"
                " whatever method you call.",
            )

    @property
    def named(self) -> bool:
        """Whether the model is given by its spec rather than as a module."""
        return isinstance(self.model, str | os.PathLike)

    @cached_property
    def spec(self) -> ModelSpec | None:
        """The spec, parsed; None for a module."""
        return check_model_spec(os.fspath(self.model), self.trust) if self.named else None

    @property
    def stem(self) -> str:
        """What the names of files made of this model begin with."""
        return type(self.model).__name__ if self.spec is None else self.spec.stem

    @property
    def source(self) -> str:
        """Where the model comes from: ``torchvision``, ``file``, ..., or ``live``."""
        return LIVE if self.spec is None else self.spec.source


@dataclass(frozen=True)
class LayerSelection:
    """The selected layers: all, or those that meet every condition.

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
        check_patterns(
            text[: find_positions(text)] if "@" in text else text for text in self.layers
        )

    def parsed_in(
        self, names: Container[str], *, positions: bool
    ) -> tuple[tuple[str, Positions | None], ...]:
        """Return each pattern without its positions, and the positions if it has some."""
        parsed = tuple(
            (text, None) if text.removeprefix("!") in names else split_positions(text)
            for text in self.layers
        )
        if excluded := next((name for name, at in parsed if at and name.startswith("!")), None):
            raise RequestError(
                f"{excluded!r} is excluded, so it has no positions.", "Leave them out."
            )
        if not positions and any(at for _, at in parsed):
            raise RequestError(
                "Only capture stores single positions of a layer.",
                "Leave out the part of --layer after the @.",
            )
        return parsed

    @property
    def everything(self) -> bool:
        """Whether there is no condition on the name, type or depth."""
        return not (self.layers or self.types or self.depth is not None)


@dataclass(frozen=True)
class InputRequest:
    """The input that the model is called with."""

    input: Any = None
    shape: Sequence[int] | None = None
    preprocess: str | None = None
    size: int | tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    tokenizer: Text | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            check_tokenizer(os.fspath(self.tokenizer))
        if self.chat and not self._has_texts():
            raise InputError(
                "--chat is for texts, and no text is given.", 'Add --input "text:WORDS".'
            )
        chosen = any(getattr(self, name) is not None for name in IMAGE_OPTIONS)
        if chosen and not self._may_hold_images():
            reject_image_options(vars(self), NO_IMAGE)

    def _has_texts(self) -> bool:
        values = [self.input] if isinstance(self.input, str | os.PathLike) else self.input
        if not isinstance(values, list | tuple):
            return False
        specs = [value for value in values if isinstance(value, str | os.PathLike)]
        return any(spec.kind == TEXT for spec in parse_inputs(specs))

    def _may_hold_images(self) -> bool:
        values = self.input
        if values is None or isinstance(values, str | os.PathLike):
            values = [] if values is None else [values]
        if not isinstance(values, list | tuple):
            return True  # a tensor or a Dataset, which is checked when the batch is built
        specs = [os.fspath(value) for value in values if isinstance(value, str | os.PathLike)]
        return len(specs) < len(values) or any(map(may_name_image, specs))


@dataclass(frozen=True)
class LossRequest:
    """The loss, or penalty, that is differentiated."""

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
            raise LossError(f"There is no penalty called {self.penalty!r}.", f"Use {PENALTIES[0]}.")
        if self.penalty and self.name in FORMULAS and self.reduction not in (None, "sum"):
            raise LossError(
                f"With --penalty the score is summed over the batch, not {self.reduction}.",
                "Leave out --reduction: the norm is then that of each sample's own gradient.",
            )
        if callable(self.loss):
            check_custom_loss_options(self.name, self.reduction, self.raw)
        elif may_name_function(self.name):
            check_custom_loss_options(self.name, self.reduction, self.raw)
            parse_function(self.name)
        else:
            check_loss_name(self.name)
            check_reduction(FORMULAS[self.name], self.reduction)
        check_target(self.target)

    @property
    def name(self) -> str:
        """The name of the loss, or of the function that computes it."""
        if callable(self.loss):
            return getattr(self.loss, "__name__", type(self.loss).__name__)
        return self.loss or ("sum" if self.penalty else "ce")

    @property
    def is_default(self) -> bool:
        """Whether no option of the loss was chosen."""
        return not chosen_options(replace(self, forward_only=False))


@dataclass(frozen=True)
class Request:
    """One run of one model.

    Example:
        >>> request = Request("capture", ModelRequest("resnet18"), LayerSelection(["layer3.*"]))
        >>> request.run.seed, request.layers.layers
        (0, ('layer3.*',))
    """

    command: str
    model: ModelRequest
    layers: LayerSelection = LayerSelection()
    input: InputRequest = InputRequest()
    run: RunOptions = RunOptions()  # noqa: RUF009 - it is frozen
    interventions: Interventions = Interventions()  # noqa: RUF009 - it is frozen
    loss: LossRequest | None = None

    def __post_init__(self) -> None:
        run, interventions = self.run, self.interventions
        if self.model.source == ONNX:
            has_loss = self.loss is not None and not self.loss.is_default
            check_onnx_run(self.command, run, interventions, has_loss=has_loss)
        if run.device_map is not None or run.max_memory:
            check_device_map(run.device_map, run.max_memory, run.device, self.model.source)
        if run.device_map is not None and not self.model.named:
            raise RequestError(
                "A device map is only for a model given by name, not for a module.",
                "Distribute the module before you pass it: accelerate.dispatch_model(model,"
                " accelerate.infer_auto_device_map(model)).",
            )
        kinds, hook_count = tuple(interventions.hook_kind), interventions.hook_count
        if kinds or hook_count:
            resolve_hook_kinds(kinds, hook_count, verb=self.command)
        if interventions.hook_args and not hook_count:
            raise RequestError("--hook-arg is given without a hook.", "Add --hook.")
        penalty = self.loss.penalty if self.loss is not None else None
        check_second_order(penalty, interventions.gradient_edits, kinds)

    def chosen(self, options: Any = None) -> dict[str, Any]:
        """Return the options that differ from the defaults, by keyword, for the metadata."""
        parts = [self.model, self.layers, self.input, self.run, self.interventions]
        parts += [part for part in (self.loss, options) if part is not None]
        return {name: value for part in parts for name, value in chosen_options(part).items()}
