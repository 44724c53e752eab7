"""A request: typed values that are checked when they are made, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from hookscope.errors import InputError, LossError, RequestError
from hookscope.specs import input_spec, losses, value_readers
from hookscope.specs.catalog import check_adapter, check_attn, check_model_spec, check_weights
from hookscope.specs.choices import DEFAULT_MODEL, ONNX_OPTIMIZATIONS, PENALTIES
from hookscope.specs.edit import check_second_order
from hookscope.specs.intervention_spec import Interventions, resolve_hook_kinds
from hookscope.specs.literal_arguments import join_arguments
from hookscope.specs.model_spec import LIVE, ONNX, ModelSpec, may_name_function, parse_function
from hookscope.specs.onnx_limits import check_onnx_model, check_onnx_optimize, check_onnx_run
from hookscope.specs.patterns import as_texts, check_patterns
from hookscope.specs.position_spec import Positions, find_positions, split_positions
from hookscope.specs.run_options import RunOptions, check_device_map
from hookscope.specs.settings import setting

Text = str | os.PathLike[str]

# In the metadata of a file, the only key of a mapping that stands for a Python object; its value is
# the object's class. No KEY=VALUE has such a key.
ONLY_PYTHON = "python object"


def chosen_options(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as values for JSON.

    The model and the input are omitted: the metadata have entries of their own for them.

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


WEIGHTS_OPTIONS = ("weights", "rename", "partial")  # of ModelRequest; the others are for loading


@dataclass(frozen=True)
class ModelRequest:
    """A model, and how it is loaded if it is given by name."""

    section = "Model"

    model: Any = setting(
        DEFAULT_MODEL,
        python="the spec of a model, or a module.",
        annotation="str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram",
        of_shell=False,
    )
    weights: str | os.PathLike[str] = setting(
        "random",
        "random, default (pretrained), a name, or a file.",
        section="Run",
        file="weights",
        complete="weights",
        python="``random``, ``default``, a name of pretrained weights, or a file (of a sharded set"
        " its index or its folder).",
    )
    rename: Mapping[str, str] | None = setting(
        None,
        "Replace the prefix OLD by NEW in checkpoint keys. Repeatable.",
        section="Run",
        metavar="OLD=NEW",
        collect=value_readers.read_prefixes,
        python="prefixes of names in the file, each with its replacement in the model.",
    )
    partial: bool = setting(
        False, "Load only the weights that match; keep initial values for the rest.", section="Run"
    )
    model_args: Mapping[str, Any] | None = setting(
        None,
        "Constructor argument. Of an hf: model a configuration value. Repeatable.",
        flags=("--model-arg",),
        metavar="KEY=VALUE",
        collect=value_readers.read_arguments,
        python="keyword arguments for a class or factory.",
    )
    method: str | None = setting(
        None,
        "Call this method instead of forward.",
        metavar="NAME",
        python="the method to run instead of ``forward``, of a model given by its spec.",
    )
    attn: str | None = setting(
        None, "Attention implementation of an hf: model, such as eager.", metavar="KIND"
    )
    trust: bool = setting(
        False,
        "Open a .pt2 file with pickles, or a pickled model, even if that runs code.",
        in_files=False,
    )
    onnx_optimize: str | None = setting(
        None,
        "How far onnxruntime may change the graph of an ONNX file. Default: none.",
        choices=ONNX_OPTIMIZATIONS,
        python="how far onnxruntime may change the graph of an ONNX file: ``none`` (the default),"
        " ``basic``, ``extended`` or ``all``.",
    )
    adapter: str | os.PathLike[str] | None = setting(
        None,
        "Folder of a peft adapter for an hf: model.",
        file="folder",
        python="the folder of an adapter of the package peft, for a ``hf:`` model. Its layers are"
        " named as peft names them, such as ``q_proj.base_layer`` and ``q_proj.lora_A.default``.",
    )

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
    """The selected layers: all, or those that meet every condition."""

    section = "Layers"

    layers: str | Iterable[str] = setting(
        (),
        "Layers to select, such as 'layer3.*', or '(model)'. Prefix ! to exclude."
        " Repeatable. Default: all.",
        flags=("--layer", "-l"),
        metavar="GLOB",
        many=True,
        complete="layers",
        python="layer patterns; none means all. A leading ``!`` excludes. Of ``h.3@-1`` only these"
        " positions of the sequence are stored (see docs/language-models.md).",
    )
    types: str | Iterable[str] = setting(
        (),
        "Layers of this type only, such as Conv2d. Repeatable.",
        flags=("--type",),
        metavar="NAME",
        many=True,
        complete="types",
        python="class names, or globs of them.",
    )
    depth: int | None = setting(
        None, "Maximum depth; 0 is the model itself.", metavar="N", minimum=0
    )
    leaves: bool = setting(False, "Leaf layers only.")

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

    section = "Input"

    input: Any = setting(
        None,
        "Image, folder, array, text:WORDS or random:SHAPE. Repeatable. Default: noise.",
        flags=("--input", "-i"),
        many=True,
        callback="one_batch",
        file="spec",
        python="a spec or a list of specs: files of images and of other kinds,"
        " ``random:1x3x64x64``, ``NAME=FILE`` for one argument (see docs/inputs.md); or the"
        " arguments of the model: a tensor, a tuple of positional arguments, a dict of keyword"
        " arguments, or a pair of both. None: the example input of the model's file, or standard"
        " normal noise.",
    )
    shape: Sequence[int] | None = setting(
        None,
        "Input shape, such as 1x3x224x224. With images, sets their size.",
        kind="shape",
        parse=value_readers.read_shape,
        python="shape of the noise.",
    )
    preprocess: str | None = setting(
        None,
        "Image preprocessing. Default: what the weights expect.",
        choices=("imagenet", "none"),
        python="``imagenet`` or ``none``; None for the preset of the weights.",
    )
    size: int | tuple[int, int] | None = setting(
        None,
        "Image size in pixels, such as 224 or 224x320.",
        kind="size",
        parse=value_readers.read_size,
        python="height and width that an image is resized to, in pixels.",
    )
    mean: Sequence[float] | None = setting(
        None,
        "Per-channel mean to subtract, on a scale of 0 to 1.",
        kind="numbers",
        parse=value_readers.read_numbers,
        python="subtracted from each channel of an image with values from 0 to 1.",
    )
    std: Sequence[float] | None = setting(
        None,
        "Per-channel standard deviation to divide by.",
        kind="numbers",
        parse=value_readers.read_divisors,
        python="each channel is then divided by it.",
    )
    tokenizer: str | os.PathLike[str] | None = setting(
        None,
        "Tokenizer for texts: tokenizer.json or a folder. Default: the model's.",
        file="path",
        python="the ``tokenizer.json`` of a tokenizer for texts, or its folder of transformers;"
        " None for that of the model.",
    )
    chat: bool = setting(
        False,
        "Put texts in the tokenizer's chat template.",
        python="put each text in the tokenizer's chat template, as the message of a user.",
    )

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            input_spec.check_tokenizer(os.fspath(self.tokenizer))
        if self.chat and not self._has_texts():
            raise InputError(
                "--chat is for texts, and no text is given.", 'Add --input "text:WORDS".'
            )
        chosen = any(getattr(self, name) is not None for name in input_spec.IMAGE_OPTIONS)
        if chosen and not self._may_hold_images():
            input_spec.reject_image_options(vars(self), input_spec.NO_IMAGE)

    def _has_texts(self) -> bool:
        values = [self.input] if isinstance(self.input, str | os.PathLike) else self.input
        if not isinstance(values, list | tuple):
            return False
        specs = [value for value in values if isinstance(value, str | os.PathLike)]
        return any(spec.kind == input_spec.TEXT for spec in input_spec.parse_inputs(specs))

    def _may_hold_images(self) -> bool:
        values = self.input
        if values is None or isinstance(values, str | os.PathLike):
            values = [] if values is None else [values]
        if not isinstance(values, list | tuple):
            return True  # a tensor or a Dataset, which is checked when the batch is built
        specs = [os.fspath(value) for value in values if isinstance(value, str | os.PathLike)]
        return len(specs) < len(values) or any(map(input_spec.may_name_image, specs))


def _may_be_loss(value: Any) -> bool:
    return callable(value) or (isinstance(value, str) and may_name_function(value))


@dataclass(frozen=True)
class LossRequest:
    """The loss, or penalty, that is differentiated."""

    section = "Loss"
    error = LossError  # of a wrong value

    loss: str | Callable[..., Any] | None = setting(
        None,
        "Loss, such as ce, kl or mse, or FILE.py:FUNCTION.",
        choices=tuple(losses.FORMULAS),
        aliases=losses.LOSS_ALIASES,
        also=_may_be_loss,
        metavar="NAME",
        shown_default="ce",
        python="``kl``, ``ce``, ``nll``, ``mse``, ``l1``, ``smooth_l1``, ``bce``, ``logit``,"
        " ``sum`` or ``norm``; or a custom function, as ``FILE.py:FUNCTION`` or the function"
        " itself, that takes the output, the output and the target, or parameters named ``output``,"
        " ``target`` and ``input``, and returns a tensor with one number. None: ``ce``, and ``sum``"
        " with ``penalty``.",
    )
    target: Any = setting(
        "argmax",
        "Class index, label, argmax, uniform, or tensor file. Write 3,7 for a batch.",
        file="target",
        python="a class index, several for a batch, a label, ``argmax`` (the class that the model"
        " predicts), ``uniform``, or a tensor file.",
    )
    reduction: str | None = setting(
        None,
        "Reduction of the loss. Default: the loss's own.",
        choices=losses.REDUCTIONS,
        python="``mean``, ``sum`` or ``batchmean``; None for the default of the loss.",
    )
    raw: bool = setting(
        False,
        "Apply the loss to the output without softmax or sigmoid.",
        python="apply the loss to the model's output without softmax or sigmoid.",
    )
    penalty: str | None = setting(
        None,
        "Differentiate the gradient penalty instead of the loss.",
        choices=PENALTIES,
        python="``gp`` for the gradients of the gradient penalty (Gulrajani et al., 2017) instead"
        " of those of the loss. The penalty is the mean over the batch of (norm - 1)^2, where norm"
        " is that of the gradient of the score at one sample's input, and the score is the loss"
        " summed over the batch. That first gradient is recorded as ``./input.0.score.grad``.",
    )
    forward_only: bool = setting(
        False, "Skip the backward pass.", python="run no backward pass, and without autograd."
    )

    def __post_init__(self) -> None:
        if self.forward_only:
            losses.reject_loss_options(self.loss, self.target, self.reduction, self.raw)
        if self.penalty is not None and self.penalty not in PENALTIES:
            raise LossError(f"There is no penalty called {self.penalty!r}.", f"Use {PENALTIES[0]}.")
        if self.penalty and self.name in losses.FORMULAS and self.reduction not in (None, "sum"):
            raise LossError(
                f"With --penalty the score is summed over the batch, not {self.reduction}.",
                "Leave out --reduction: the norm is then that of each sample's own gradient.",
            )
        if callable(self.loss):
            losses.check_custom_loss_options(self.name, self.reduction, self.raw)
        elif may_name_function(self.name):
            losses.check_custom_loss_options(self.name, self.reduction, self.raw)
            parse_function(self.name)
        else:
            losses.check_loss_name(self.name)
            losses.check_reduction(losses.FORMULAS[self.name], self.reduction)
        losses.check_target(self.target)

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
    """One run of one model."""

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

    @classmethod
    def of(cls, command: str, parts: Iterable[Any]) -> Request:
        """Return the request of a command that some parts make; other values are passed over."""
        made = {type(part): part for part in parts}
        return cls(
            command,
            made[ModelRequest],
            made.get(LayerSelection, LayerSelection()),
            made.get(InputRequest, InputRequest()),
            made.get(RunOptions, RunOptions()),
            made.get(Interventions, Interventions()),
            made.get(LossRequest),
        )

    def chosen(self, options: Any = None) -> dict[str, Any]:
        """Return the options that differ from the defaults, by keyword, for the metadata."""
        parts = [self.model, self.layers, self.input, self.run, self.interventions]
        parts += [part for part in (self.loss, options) if part is not None]
        return {name: value for part in parts for name, value in chosen_options(part).items()}
