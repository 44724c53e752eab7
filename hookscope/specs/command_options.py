"""The options of single commands, besides the parts of a request that commands share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from hookscope.errors import ModelError, RequestError
from hookscope.specs import cam_methods, checks
from hookscope.specs.attribution_options import AttributeOptions, check_token
from hookscope.specs.catalog import TASKS
from hookscope.specs.choices import ABLATION_EDITS, ABLATION_METRICS, OPTIMIZERS, SWEEP_METRICS
from hookscope.specs.losses import check_target
from hookscope.specs.model_spec import ONNX
from hookscope.specs.patterns import stored_layers
from hookscope.specs.request import Request
from hookscope.specs.settings import same_setting, setting
from hookscope.specs.sweep_edit import check_sweep_places, parse_sweep_edit
from hookscope.specs.tensor_key import CAPTURED_KINDS, GRADIENT_KINDS, resolve_kinds
from hookscope.specs.value_readers import read_arguments, read_byte_count, read_shape

_EVERY_CHECK = tuple(dict.fromkeys((*checks.CHECKS, *checks.RUN_CHECKS, *checks.WEIGHT_CHECKS)))
_CHECKS_OF = {
    "models": checks.CHECKS,
    "training runs": checks.RUN_CHECKS,
    "files of weights": checks.WEIGHT_CHECKS,
}


def hold_iterable(options: object, name: str) -> None:
    """Convert a field that may be a generator, which can be read only once, to a tuple."""
    value = getattr(options, name)
    if value is not None and not isinstance(value, str):
        object.__setattr__(options, name, tuple(value))


# What records the tensors of these names, for a suggestion.
_RECORDED_BY = {
    **dict.fromkeys(("attention", "attn"), "--attention"),
    **dict.fromkeys(("ops", "operations"), "--ops"),
    **dict.fromkeys(("grad", "gradient", "gradients", "output.grad"), "'hookscope grads'"),
    **dict.fromkeys(("weight", "weights", "param", "parameters"), "'hookscope show FILE'"),
}


@dataclass(frozen=True)
class ModelsOptions:
    """Which models ``models`` lists."""

    section = "Options"
    error = ModelError

    task: str | None = setting(
        None, "Models for this task only.", choices=TASKS, python="models for this task only."
    )


@dataclass(frozen=True)
class CaptureOptions:
    """What ``capture`` records and checks."""

    section = "Layers"

    what: str | Iterable[str] = setting(
        ("output",),
        "Tensors to record of each layer. Separate several with commas.",
        choices=tuple(CAPTURED_KINDS),
        aliases=_RECORDED_BY,
        commas=True,
        shell_default="output",
        python="``output``, ``input`` or both; ``state`` for the hidden and cell states of LSTM,"
        " GRU and RNN at each step, and with ``ops`` their gates.",
    )
    ops: bool = setting(
        False,
        "Also record results of functions called between modules (add, flatten, ...).",
        python="also record the results of functions that the selected layers call between"
        " modules, as ``<module>[:call]/add`` (see docs/ops.md).",
    )
    attention: bool = setting(
        False,
        "Also record attention weights.",
        python="also record attention weights, as ``<module>[:call]/attention`` of shape"
        " (..., L, S), L queries by S keys. Weights hidden by a fused kernel are recomputed from"
        ' its inputs and recorded only if they reproduce its output; ``metadata["attention"]``'
        " has the error. With this or ``ops`` the model runs once more without hooks, and the"
        " output must be bit-identical.",
    )
    verify: bool = setting(
        False,
        "Re-run without recording and require a bit-identical output.",
        section="Checks",
        python="run again with the edits but no recording hooks, and require a bit-identical"
        " output.",
    )
    strict: bool = setting(
        False,
        "Fail (exit 1) if a selected layer never runs.",
        section="Checks",
        python="require that every matched layer ran.",
    )
    max_bytes: int | None = setting(
        None,
        "Fail if more would be recorded than this, such as 2GB.",
        section="Checks",
        kind="bytes",
        parse=read_byte_count,
        python="maximum number of bytes to record.",
    )
    stop: bool | None = setting(
        False,
        "End the run after the last selected layer (default: automatic).",
        section="Run",
        shell_default=None,
        python="end the run after the last call of the selected layers, so that the capture has no"
        " output of the model; ``coverage.not_run`` names what would follow. If that call is not"
        " known before the run, it ends after the first call of each. None: only if the call is"
        " known and nothing of the capture but its output needs the rest, as on the command line"
        " (see docs/large-models.md).",
    )

    def check_request(self, request: Request) -> None:
        """Raise RequestError if the model or the run cannot do what is asked for."""
        from hookscope.specs.onnx_limits import check_onnx_ops

        check_onnx_ops(request.model.source == ONNX, self.ops)
        check_early_stop(request, self)

    def __post_init__(self) -> None:
        hold_iterable(self, "what")
        self.kinds  # noqa: B018 - computed for its checks

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, CAPTURED_KINDS)


@dataclass(frozen=True)
class GradsOptions:
    """What ``grads`` records and checks; see ``CaptureOptions``."""

    section = "Layers"

    what: str | Iterable[str] = same_setting(
        CaptureOptions,
        "what",
        ("output", "param"),
        choices=tuple(GRADIENT_KINDS),
        aliases=None,
        shell_default="output,param",
        python="any of ``output`` (gradient at each module's output), ``input`` (the part that"
        " flows back through that module to its input) and ``param``.",
    )
    ops: bool = same_setting(
        CaptureOptions,
        "ops",
        python="also record the gradients at the results of functions that the selected layers"
        " call between modules, as ``<module>[:call]/add.grad``.",
    )
    verify: bool = same_setting(CaptureOptions, "verify")
    strict: bool = same_setting(CaptureOptions, "strict")
    max_bytes: int | None = same_setting(CaptureOptions, "max_bytes")

    def __post_init__(self) -> None:
        hold_iterable(self, "what")
        self.kinds  # noqa: B018 - computed for its checks

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, GRADIENT_KINDS)


@dataclass(frozen=True)
class StepOptions:
    """The optimizer of ``step``."""

    section = "Optimizer"

    optimizer: str = setting(
        "sgd",
        f"Optimizer, such as sgd or adam. One of {', '.join(OPTIMIZERS)}.",
        choices=tuple(OPTIMIZERS),
        metavar="NAME",
        python="``sgd``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``adadelta``, ``adamax``,"
        " ``adafactor``, ``asgd``, ``nadam``, ``radam`` or ``rprop``.",
    )
    lr: float | None = setting(
        None,
        "Learning rate. Default: the optimizer's own.",
        metavar="X",
        python="the learning rate; None for the optimizer's default.",
    )
    opt_args: Mapping[str, Any] | None = setting(
        None,
        "Optimizer argument, such as momentum=0.9. Repeatable.",
        flags=("--opt-arg",),
        metavar="KEY=VALUE",
        collect=read_arguments,
        python="further arguments of its class in ``torch.optim``, such as ``momentum``.",
    )
    strict: bool = same_setting(CaptureOptions, "strict")
    max_bytes: int | None = same_setting(CaptureOptions, "max_bytes")

    def __post_init__(self) -> None:
        if self.lr is not None and not math.isfinite(self.lr):
            raise RequestError(
                f"{self.lr} is not a valid learning rate.", "Give a finite number as --lr."
            )
        if self.lr is not None and "lr" in (self.opt_args or {}):
            raise RequestError("The learning rate is given twice.", "Leave out --opt-arg lr.")


@dataclass(frozen=True)
class GradcheckOptions:
    """The tolerances of ``gradcheck``: |a - b| <= atol + rtol |b|."""

    section = "Precision"

    shape: Sequence[Sequence[int]] | Sequence[int] = setting(
        (),
        "Shape of an input, such as 2x3. Repeat for several inputs.",
        section="Input",
        many=True,
        kind="shape",
        parse=read_shape,
        python="shape of the input, or a list with a shape for each; filled with seeded noise.",
    )
    eps: float = setting(
        1e-6,
        "Step of the numerical derivative.",
        metavar="X",
        python="half the width of the central difference.",
    )
    atol: float = setting(
        1e-5,
        "Derivatives match if the difference is <= atol + rtol * |numerical|.",
        metavar="X",
        python="derivatives match if they differ by at most ``atol + rtol * |numerical|``. This"
        " rule and the defaults are those of ``torch.autograd.gradcheck``.",
    )
    rtol: float = setting(
        1e-3,
        "Relative tolerance.",
        metavar="X",
        python="the relative part of the tolerance.",
    )

    def __post_init__(self) -> None:
        numbers = (self.eps, self.atol, self.rtol)
        if self.eps <= 0 or min(numbers) < 0 or not all(map(math.isfinite, numbers)):
            raise RequestError(
                f"eps {self.eps}, atol {self.atol}, rtol {self.rtol}: eps must be above 0, atol"
                " and rtol at least 0, and all of them finite.",
                "The defaults of torch.autograd.gradcheck are 1e-6, 1e-5 and 1e-3.",
            )


@dataclass(frozen=True)
class ChosenChecks:
    """Which checks ``check`` makes."""

    section = "Checks"

    only: str | Iterable[str] | None = setting(
        None,
        "Run these checks only; separate names with commas. batch, determinism and mask run only"
        " if named.",
        metavar="LIST",
        choices=_EVERY_CHECK,
        commas=True,
        python="names of the checks to run, as a list or separated by commas. None: all except"
        " ``batch``, ``determinism`` and ``mask``.",
    )
    skip: str | Iterable[str] | None = setting(
        None,
        "Skip these checks.",
        metavar="LIST",
        choices=_EVERY_CHECK,
        commas=True,
        python="names of checks to skip.",
    )

    known: ClassVar[Mapping[str, checks.Check]]

    def __post_init__(self) -> None:
        hold_iterable(self, "only")
        hold_iterable(self, "skip")
        self.names  # noqa: B018 - computed for its checks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks to make."""
        return checks.select_checks(self.only, self.skip, self.known, _CHECKS_OF)


_THRESHOLDS = "Thresholds"  # the section of the help


def _threshold(name: str, help: str, python: str) -> Any:
    default = getattr(checks.DEFAULT_THRESHOLDS, name)
    return setting(default, help, section=_THRESHOLDS, metavar="X", python=python)


@dataclass(frozen=True)
class CheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a model, and the thresholds of its findings."""

    known = checks.CHECKS

    dead: float = _threshold(
        "dead",
        "Share of zero units at which a ReLU-like layer is dead.",
        "share of dead units (always zero) from which a ReLU-like layer is reported. The default,"
        " half, is that of the rule ``DeadRelu`` of Amazon SageMaker Debugger, see"
        " ``hookscope.specs.checks.Thresholds``. ``units`` of a finding has their indices.",
    )
    saturated: float = _threshold(
        "saturated",
        "Share of entries at a bound at which an activation is saturated.",
        "share of entries at a bound from which an activation is reported.",
    )
    margin: float = _threshold(
        "margin",
        "Distance from a bound, relative to the range, that counts as at the bound.",
        "distance from a bound that counts as at it, as a share of the width between bounds.",
    )
    vanishing: float = _threshold(
        "vanishing",
        "Gradient norm, relative to that nearest to the loss, below which it has vanished"
        " (parameters: 1/100 of it).",
        "a gradient vanishes if its norm is below this share of the norm nearest to the loss; for"
        " parameters, 1/100 of this.",
    )
    exploding: float = _threshold(
        "exploding",
        "The same, above which it has exploded (parameters: 100 times it).",
        "a gradient explodes if its norm is above this multiple of the norm nearest to the loss;"
        " for parameters, 100 times this.",
    )
    floor: float | None = setting(
        None,
        "Gradient norm below which it has always vanished. Default:"
        f" {checks.DEFAULT_THRESHOLDS.floor:g}, of a training run"
        f" {checks.DEFAULT_RUN_THRESHOLDS.floor:g}.",
        section=_THRESHOLDS,
        metavar="X",
        python="norm below which a gradient vanishes in any case. None: 1e-8; in a run 1e-7.",
    )
    ceiling: float = _threshold(
        "ceiling",
        "Gradient entry above which it has always exploded.",
        "entry above which a gradient explodes in any case.",
    )
    live: bool = setting(
        False,
        "Check the next step of a training that runs now, not its record.",
        section="Training runs",
        negative=False,
        python="of the folder of a training that runs now: check its next step, not its record.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.thresholds  # noqa: B018 - computed for its checks

    def check_request(self, request: Request) -> None:
        """Raise RequestError if a model is checked as if it were a training."""
        if self.live:
            raise RequestError(
                "--live is for the folder of a training run, and a model is checked.",
                "Leave it out.",
            )

    @property
    def thresholds(self) -> checks.Thresholds:
        """The thresholds of the findings."""
        chosen = {field.name: getattr(self, field.name) for field in fields(checks.Thresholds)}
        floor = checks.DEFAULT_THRESHOLDS.floor if self.floor is None else self.floor
        return checks.Thresholds(**chosen | {"floor": floor})


@dataclass(frozen=True)
class RunCheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a training run, and the thresholds that have an option."""

    known = checks.RUN_CHECKS

    dead: float = checks.DEFAULT_RUN_THRESHOLDS.dead
    vanishing: float = checks.DEFAULT_RUN_THRESHOLDS.vanishing
    floor: float | None = None
    live: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        thresholds = self.thresholds  # computed also for its checks
        if self.live and thresholds != checks.DEFAULT_RUN_THRESHOLDS:
            raise RequestError(
                "--dead, --vanishing and --floor have no effect with --live.", "Leave them out."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks to make, of the record or of the next step."""
        known = checks.STEP_CHECKS if self.live else self.known
        return checks.select_checks(self.only, self.skip, known, _CHECKS_OF)

    @property
    def thresholds(self) -> checks.RunThresholds:
        """The thresholds of the findings."""
        floor = checks.DEFAULT_RUN_THRESHOLDS.floor if self.floor is None else self.floor
        return checks.RunThresholds(dead=self.dead, vanishing=self.vanishing, floor=floor)


@dataclass(frozen=True)
class WeightCheckOptions(ChosenChecks):
    """Which checks ``check`` makes of a file of weights."""

    known = checks.WEIGHT_CHECKS


@dataclass(frozen=True)
class AblateOptions:
    """How ``ablate`` ablates layers."""

    section = "Ablation"

    by: str = setting(
        "zero",
        "How a layer's output is changed.",
        choices=ABLATION_EDITS,
        python="``zero``; ``mean``, each channel's mean over the batch and all positions; or"
        " ``noise``, standard normal noise times the output's standard deviation, added to it.",
    )
    channels: bool = setting(False, "Ablate every channel of every layer separately.")
    rank: str | None = setting(
        None,
        "Metric to sort by. Default: score if there are class scores, else output.",
        choices=ABLATION_METRICS,
        python="what to sort by, the largest change first: ``score``, the target's mean logit over"
        " the batch; ``loss``; or ``output``, the norm of the difference from the clean output over"
        " the norm of the clean output. None: ``score`` if there is one, else ``output``.",
    )


@dataclass(frozen=True)
class TraceOptions:
    """How often ``trace`` runs the model."""

    section = "Timing"

    repeat: int | None = setting(
        None,
        "Time N runs; show the median and spread of each layer.",
        metavar="N",
        minimum=1,
        python="time this number of runs. ``times`` of the result then has the median and the"
        " spread of each layer's time, without the time that the hooks take.",
    )
    warmup: int | None = setting(
        None,
        "Runs before those that --repeat times.",
        metavar="N",
        minimum=0,
        shown_default="3",
        python="with ``repeat``, the number of runs before those that are timed; None for 3.",
    )

    def __post_init__(self) -> None:
        if self.warmup is not None and self.repeat is None:
            raise RequestError("--warmup needs --repeat.", "Add --repeat N, or leave it out.")

    @property
    def runs(self) -> int:
        """The number of runs that are timed."""
        return 1 if self.repeat is None else self.repeat

    @property
    def warmup_runs(self) -> int:
        """The number of runs before them."""
        return 3 if self.warmup is None else self.warmup


@dataclass(frozen=True)
class SweepOptions:
    """What ``sweep`` changes and shows."""

    section = "Sweep"

    edit: str = setting(
        "zero",
        "Edit without a layer, such as zero or patch:FILE.",
        metavar="OPERATION",
        python="an operation of ``--edit`` without a layer, such as ``zero``, ``noise:1std`` or"
        " ``patch:FILE``, which takes the tensor of the same layer from a capture."
        " ``dtype:bfloat16`` rounds the layer's output to that dtype and back. ``quantize:BITS``"
        " rounds it to a grid, and ``quantize-weights:BITS`` the weights of the layer, each output"
        " channel to a symmetric grid of its own; see ``hookscope.hooks.edits.edited_weights``.",
    )
    positions: str | None = setting(
        None,
        'Edit one position at a time: all, or 0,2-3," Paris".',
        metavar="LIST",
        python='``all`` or positions such as ``"0,2-3"``: edit one position at a time. Without'
        " ``layers``, those that are edited are then the blocks of the model, which return the"
        " residual stream, instead of the leaves.",
    )
    heads: int | str | None = setting(
        None,
        "Edit one attention head at a time; N heads, or auto.",
        metavar="N",
        python="number of attention heads, or ``auto`` for that of the model's configuration: edit"
        " one head at a time, in the input of the output projections of attention.",
    )
    experts: bool = setting(
        False,
        "Edit one expert at a time (zero or scale:A).",
        negative=False,
        python="edit one expert at a time in layers whose experts share parameters, as in"
        " transformers: ``zero`` or ``scale:A`` multiplies the expert's routing weights.",
    )
    against: str | int | None = setting(
        None,
        "Second class or token of the logit difference.",
        metavar="CLASS",
        python="a class or token. Measures the logit of the target minus that of it too.",
    )
    metric: str | None = setting(
        None,
        "Metric of the map. Default: difference, score or output.",
        choices=SWEEP_METRICS,
        python="the metric of the map: ``difference``, ``score``, ``loss``, ``kl`` or ``output``."
        " None: the first of difference, score and output that is defined.",
    )

    def __post_init__(self) -> None:
        edit = parse_sweep_edit(self.edit)
        check_sweep_places(edit, self.positions, self.heads, self.experts)
        if isinstance(self.against, str):
            check_target(self.against)
        if self.metric == "difference" and self.against is None:
            raise RequestError(
                "The metric difference needs a second class.", "Add --against CLASS."
            )


@dataclass(frozen=True)
class ExportOptions:
    """What ``export`` writes."""

    section = "Layers"

    layers: str | Iterable[str] = stored_layers(
        "Layer, key or glob; for a FILE with an optional slice. Repeatable. Default: all.",
        "layers, keys or globs of either; none means all. For a capture, each may be followed by a"
        " slice, unless a safetensors file is written. For a training run, ``!`` before one"
        " excludes.",
    )


@dataclass(frozen=True)
class LensOptions:
    """How ``lens`` reads the layers of a language model."""

    section = "Lens"

    norm: str | None = setting(
        None,
        "Final norm, or none. Default: the module that feeds the head.",
        metavar="NAME",
        python="name of the final norm, or ``none``. None: the module that returns what the head"
        " gets.",
    )
    head: str | None = setting(
        None,
        "Unembedding. Default: the module that returns the logits.",
        metavar="NAME",
        python="name of the unembedding. None: the module that returns the logits.",
    )
    target: str | int = setting(
        "argmax",
        "Token of the rank and probability: text, id or argmax.",
        metavar="TOKEN",
        python="the token whose rank and probability each cell has: its text, its id, or"
        " ``argmax`` for the token that the whole model predicts at that position.",
    )

    def __post_init__(self) -> None:
        check_token(self.target)


@dataclass(frozen=True)
class CamOptions:
    """How ``cam`` computes a map."""

    section = "Map"

    by: str = setting(
        cam_methods.DEFAULT_METHOD,
        f"Method, such as {', '.join(list(cam_methods.METHODS)[:3])}."
        " See 'hookscope help cam-methods'.",
        choices=tuple(cam_methods.METHODS),
        aliases=cam_methods.METHOD_ALIASES,
        metavar="METHOD",
        python="from gradients and values of a layer: ``gradcam``, ``gradcam++``, ``hirescam`` or"
        " ``layercam``; from its values: ``eigencam`` (independent of the target) or ``scorecam``"
        " (one run for each channel); from the attention weights of all layers: ``rollout`` (the"
        " target decides only which tokens are read); from the gradient at the image: ``guided``,"
        " ``saliency``, ``integrated`` or ``gradxinput``; from one run for each covered patch:"
        " ``occlusion``. ``hookscope.specs.cam_methods.METHODS`` has the formulas and the papers.",
    )
    layer: str | None = setting(
        None,
        "Layer of the map. Default: the last one with a spatial output.",
        flags=("--layer", "-l"),
        metavar="NAME",
        many=True,
        callback="one_layer",
        complete="layers",
        python="the name or a glob of one layer, for methods that use a layer. None: the last"
        " layer that has a spatial output with a gradient of the score. Maps (N, C, H, W) and"
        " (N, H, W, C) and tokens (N, L, C) are recognized by their shapes, and so is the number"
        " of class or register tokens. Of several calls of the layer the last is used.",
    )
    target: Any = setting(
        "argmax",
        "Class index, label, argmax, or tensor file. Write 3,7 for a batch.",
        file="target",
        flags=("--target", "--class"),
        python="a class index, several for a batch, a label, ``argmax`` or a tensor of indices."
        " With ``box``, the class among whose objects it is; ``argmax`` for any.",
    )
    scores: str | None = setting(
        None,
        "Output with the class scores, such as aux or 1, if there are several.",
        metavar="NAME",
        python="the name of the output that has the class scores, such as ``aux`` or ``1``, if"
        " there are several. None: ``logits``, ``out``, or the first. With ``box``, of scores (1,"
        " objects, classes).",
    )
    box: int | None = setting(
        None,
        "Explain a detected object: its number, by score, from 0.",
        minimum=0,
        metavar="N",
        python="explain the score of a detected object, by its number in the order of the scores,"
        " from 0: of torchvision's detectors the score that they return, of models with ``logits``"
        " and ``pred_boxes`` as in transformers the logit.",
    )
    receptive: str | None = setting(
        None,
        "Draw what the strongest unit of this layer depends on, as a box.",
        metavar="NAME",
        complete="layers",
        python="the name of a layer: its unit with the highest activation, and the positions of"
        " the input that this unit depends on, are in the metadata of each image under"
        " ``strongest``, and drawn as a box over an image.",
    )
    upsample: str = setting(
        cam_methods.UPSAMPLINGS[0],
        "How the map is resized to the image.",
        choices=cam_methods.UPSAMPLINGS,
        python="``bilinear`` or ``nearest``, from the layer's grid to the image.",
    )
    steps: int | None = same_setting(AttributeOptions, "steps", section="Map")
    baseline: Any = setting(
        None,
        "Baseline: model input 0, or a black or white image.",
        choices=cam_methods.BASELINES,
        shown_default=cam_methods.BASELINES[0],
        python="for ``integrated`` and ``occlusion``: ``zero``, ``black`` or ``white`` (for image"
        " files), or a tensor that broadcasts to the preprocessed images. None for ``zero``.",
    )
    patch: int | None = setting(
        None,
        "Side of the patches of occlusion in pixels. Default: an eighth of the image.",
        minimum=1,
        metavar="N",
        python="for ``occlusion``: side of a patch in pixels; None for an eighth of the shorter"
        " side.",
    )

    def check_request(self, request: Request) -> None:
        """Raise RequestError if the method cannot be used with the model, or for a wrong layer."""
        from hookscope.specs.onnx_limits import check_onnx_cam
        from hookscope.specs.request import LayerSelection

        check_onnx_cam(request.model.source, self.by)
        LayerSelection(() if self.layer is None else self.layer)

    def __post_init__(self) -> None:
        cam_methods.check_cam_options(
            self.by, self.layer, self.steps, self.baseline, self.upsample, self.patch
        )
        check_target(self.target)
        if self.receptive is not None and self.box is not None:
            raise RequestError("--receptive and --box both draw a box.", "Leave out one of them.")


def check_early_stop(request: Request, options: CaptureOptions) -> None:
    """Raise RequestError if the run is to end early and something else needs the rest of it."""
    if not options.stop:
        return
    if request.model.source == ONNX:
        raise RequestError(
            "--stop does not work with an ONNX file: onnxruntime computes the whole graph at once.",
            "Leave it out.",
        )
    for option, reason in options_needing_output(request, options):
        raise RequestError(
            f"--stop ends the run before the model returns, but {option} {reason}.",
            f"Leave out --stop or {option}.",
        )


def may_stop(request: Request, options: CaptureOptions) -> bool:
    """Return whether no option and no kind of model needs the whole run.

    >>> from hookscope.specs.request import ModelRequest
    >>> may_stop(Request("capture", ModelRequest("resnet18")), CaptureOptions(verify=True))
    False
    """
    return request.model.source != ONNX and not options_needing_output(request, options)


def options_needing_output(request: Request, options: CaptureOptions) -> list[tuple[str, str]]:
    """Return the chosen options that need the whole run, each with the reason."""
    edits = request.interventions.value_edits
    needs = (
        ("--verify", options.verify, "compares the outputs of the model"),
        ("--ops", options.ops, "compares the outputs of the model"),
        ("--attention", options.attention, "compares the outputs of the model"),
        ("--generate", request.run.generate is not None, "runs the model for every token"),
        ("--edit", bool(edits), "shows the change of the output"),
        ("--hook", request.interventions.hook_count > 0, "may be called by a later layer"),
    )
    return [(option, reason) for option, chosen, reason in needs if chosen]
