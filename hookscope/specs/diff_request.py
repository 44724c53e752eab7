"""The request of ``diff``, checked without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hookscope.errors import RequestError
from hookscope.files.output_path import (
    FINGERPRINT,
    holds_features,
    is_fingerprint,
    is_hookscope_file,
    is_run_folder,
)
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import near_files
from hookscope.specs import model_spec
from hookscope.specs.catalog import check_model_spec
from hookscope.specs.command_options import hold_iterable
from hookscope.specs.diff_sides import label_errors
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.settings import same_setting, setting, spell_option
from hookscope.specs.tensor_key import VALUE_KINDS, resolve_kinds
from hookscope.specs.tolerances import ExactDiffOptions, check_tolerances
from hookscope.specs.value_readers import read_arguments, read_name_map, read_prefixes

# Options of a model that may be given once for both or twice, for A and then B; with their defaults
# in commands that take one model.
PAIRED_OPTIONS: dict[str, Any] = {
    **{"weights": "random", "rename": None, "model_args": None},
    **dict.fromkeys(("method", "attn", "onnx_optimize", "adapter", "dtype", "device")),
}
INPUT_OPTIONS = ("input", "shape", "preprocess", "size", "mean", "std", "tokenizer", "chat")
# The options of a comparison of captures, and those of models alone.
CAPTURE_OPTIONS = (
    *("map", "atol", "rtol", "equal_nan", "strict"),
    *("layers", "types", "depth", "what"),
)
MODEL_OPTIONS = (
    *(*PAIRED_OPTIONS, *INPUT_OPTIONS, "partial", "trust", "seed", "train", "leaves"),
    *("structure", "local", "floor", "train_a", "train_b", "compile_a", "compile_b"),
)
# Those of models that do not run.
STRUCTURE_OPTIONS = (
    *("structure", "map", "layers", "types", "depth", "leaves"),
    *("model_args", "attn", "trust", "adapter"),
)
# Those of a model that is compared with a dump.
DUMP_OPTIONS = (
    *(*CAPTURE_OPTIONS, *PAIRED_OPTIONS, *INPUT_OPTIONS),
    *("partial", "trust", "seed", "train", "leaves"),
)
# These files hold their own weights, and the arguments that the model was built with.
_SELF_CONTAINED = (model_spec.TORCHSCRIPT, model_spec.EXPORTED, model_spec.ONNX)


FLOAT64, NO_FLOOR = "float64", "none"  # values of ``floor``
_PAIR = "as for ``capture``, for both models, or a pair for A and B."


def parse_pairs_for_both(
    pairs: Sequence[str], read: Callable[[Sequence[str]], dict[str, Any]]
) -> dict[str, Any] | tuple[dict[str, Any], dict[str, Any]]:
    """Parse ``KEY=VALUE`` pairs; a key that is given twice is for A and then for B."""
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


_prefixes_for_both = partial(parse_pairs_for_both, read=read_prefixes)
_arguments_for_both = partial(parse_pairs_for_both, read=read_arguments)


@dataclass(frozen=True)
class DiffRequest:
    """What is compared, and how."""

    a: Any
    b: Any
    section = "Comparison"

    map: Mapping[str, str] | str | os.PathLike[str] | None = setting(
        None,
        "Replace the prefix OLD in A by NEW to match B. Repeatable. Or rules for a dump.",
        metavar="OLD=NEW|FILE.toml",
        collect=read_name_map,
        python="prefixes of names in A, each with its replacement in B; or the path of a file of"
        " rules for the names of a dump, which ends in ``.toml``.",
    )
    atol: float | None = setting(
        None,
        "Values match if |A - B| <= atol + rtol * |A|. Default: torch.testing's; of runs and"
        " weights 0.",
        metavar="X",
        python="tensors match if ``|a - b| <= atol + rtol * |a|`` everywhere. The default of each"
        " is that of ``torch.testing.assert_close`` for the less precise of the two dtypes; if one"
        " of the models is an ONNX file, a share of the entry (``rtol``) and of the largest entry"
        " of A's tensor (``atol``), such as 1e-4 for float32.",
    )
    rtol: float | None = setting(
        None,
        "Relative tolerance. Default: torch.testing's; of runs and weights 0.",
        metavar="X",
        python="the relative part of the tolerance.",
    )
    equal_nan: bool = setting(
        False, "Treat NaN in both as equal.", python="count NaN in both as equal."
    )
    strict: bool = setting(
        False,
        "Treat an unmatched tensor, a step of only one run, or another dtype of weights as a"
        " difference (exit 1).",
        python="count an unmatched tensor as a difference; of weights another dtype.",
    )
    shift: int = setting(
        0,
        "Compare step S of B with step S + N of A: B was resumed after N steps. Of runs.",
        metavar="N",
        minimum=0,
        python="of runs: compare step S of B with step S + ``shift`` of A, because B was resumed"
        " after that many steps. What a step begins with is compared first.",
    )
    structure: bool = setting(
        False,
        "Compare the layers of two models instead: which are added, removed, moved, renamed or have"
        " other arguments. No model runs.",
        python="compare the layers of two models, which do not run; the result is a"
        " ``StructureDiff``.",
    )
    local: bool = setting(
        False,
        "Find where differences arise: run each module of B on A's inputs, too.",
        python="run each module of B with the inputs that its counterpart gets in A, and with A's"
        " outputs of the modules within it, so that only what it computes itself differs; the"
        " result is a ``LocalDiff``.",
    )
    floor: str | None = setting(
        None,
        "Measure errors in units of A's rounding errors, from a run in float64; none compares them"
        " with the tolerance. Implies --local. Default: float64, where A has one; none with --rtol"
        " or --atol.",
        choices=(FLOAT64, NO_FLOOR),
        python="``float64``: run A's modules in this dtype too, and state errors in units of the"
        " difference. If B has a less precise dtype, A's modules run in that dtype instead."
        " ``none``: compare errors with the tolerance. Implies ``local``, whose default is"
        " ``float64`` where A can be measured and no tolerance is given.",
    )
    layers: str | Iterable[str] = same_setting(
        LayerSelection,
        "layers",
        python="layer patterns, matched against names in A and in B; none means all.",
    )
    types: str | Iterable[str] = same_setting(LayerSelection, "types")
    depth: int | None = same_setting(
        LayerSelection, "depth", python="the maximum number of parts of a name."
    )
    leaves: bool = same_setting(LayerSelection, "leaves", python="leaf modules only, for models.")
    what: str | Iterable[str] | None = setting(
        None,
        "What to compare. Default: outputs of models, everything in files.",
        section="Layers",
        choices=tuple(VALUE_KINDS),
        commas=True,
        python="``output``, ``input`` or both. None: outputs of models, all records of files.",
    )
    model_args: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = same_setting(
        ModelRequest,
        "model_args",
        help="Constructor argument. A KEY given twice applies to A, then B. Repeatable.",
        collect=_arguments_for_both,
        python=_PAIR,
    )
    method: str | Sequence[str] = same_setting(ModelRequest, "method", (), many=True, python=_PAIR)
    attn: str | Sequence[str] = same_setting(ModelRequest, "attn", (), many=True, python=_PAIR)
    trust: bool = same_setting(
        ModelRequest,
        "trust",
        python="as for ``capture``; of a pickled model, build it, which runs code, and compare its"
        " weights.",
    )
    onnx_optimize: str | Sequence[str] = same_setting(
        ModelRequest,
        "onnx_optimize",
        (),
        many=True,
        python="as for ``capture``, for an ONNX file or a pair for A and B.",
    )
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = same_setting(
        ModelRequest,
        "adapter",
        (),
        many=True,
        help="Folder of a peft adapter for an hf: model, or none.",
        python="as for ``capture``, for both models, or a pair for A and B; ``none`` without one.",
    )
    input: Any = same_setting(InputRequest, "input")
    shape: Sequence[int] | None = same_setting(InputRequest, "shape")
    preprocess: str | None = same_setting(InputRequest, "preprocess")
    size: int | tuple[int, int] | None = same_setting(InputRequest, "size")
    mean: Sequence[float] | None = same_setting(InputRequest, "mean")
    std: Sequence[float] | None = same_setting(InputRequest, "std")
    tokenizer: str | os.PathLike[str] | None = same_setting(InputRequest, "tokenizer")
    chat: bool = same_setting(InputRequest, "chat")
    weights: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = same_setting(
        ModelRequest,
        "weights",
        (),
        many=True,
        python=_PAIR,
        help="random, default (pretrained), a name, or a file. Default: random.",
    )
    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = same_setting(
        ModelRequest,
        "rename",
        help="Replace the prefix OLD by NEW in checkpoint keys, or names of weights; an OLD given"
        " twice applies to A, then B. Repeatable.",
        collect=_prefixes_for_both,
        python=f"{_PAIR} For weights, it replaces prefixes of names in A, or in B if no name in A"
        " has them; for weights and a model, those of the weights.",
    )
    partial: bool = same_setting(ModelRequest, "partial")
    seed: int = same_setting(
        RunOptions, "seed", python="of random weights, noise and dropout, in both models."
    )
    dtype: str | Sequence[str] = same_setting(RunOptions, "dtype", (), many=True, python=_PAIR)
    device: str | Sequence[str] = same_setting(RunOptions, "device", (), many=True, python=_PAIR)
    train: bool = same_setting(RunOptions, "train")
    train_a: bool | None = setting(
        None,
        "Run A in training mode, or not. Default: --train.",
        section=RunOptions.section,
        negative="eval-a",
    )
    train_b: bool | None = setting(
        None,
        "Run B in training mode, or not. Default: --train.",
        section=RunOptions.section,
        negative="eval-b",
    )
    compile_a: bool = setting(
        False,
        "Compile each leaf module of A by itself with torch.compile.",
        section=RunOptions.section,
        python="compile each module of A that has no others in it with ``torch.compile``.",
    )
    compile_b: bool = setting(
        False,
        "Compile each leaf module of B by itself with torch.compile.",
        section=RunOptions.section,
        python="compile each module of B that has no others in it with ``torch.compile``.",
    )

    def __post_init__(self) -> None:
        for name in ("layers", "types", "what"):
            hold_iterable(self, name)
        check_tolerances(self.atol, self.rtol)
        if self.shift:
            raise RequestError(
                "--shift is for training runs, and A and B are models.", "Leave it out."
            )
        self.selection, self.kinds  # noqa: B018 - computed for their checks
        if isinstance(self.map, str):
            name = os.fspath(self.b) if isinstance(self.b, str | os.PathLike) else "B"
            raise RequestError(
                f"--map {self.map} has rules for a dump of another program, and {name} is not one.",
                "Write --map OLD=NEW, with the prefix OLD from A and NEW from B.",
            )
        if not self.compares_captures:
            self.requests  # noqa: B018 - computed for its checks

    @property
    def compiled(self) -> tuple[bool, bool]:
        """Whether the modules of A, and of B, are compiled."""
        return self.compile_a, self.compile_b

    @cached_property
    def compares_captures(self) -> bool:
        """Whether A and B are captures rather than models."""
        return are_captures(self.a, self.b)

    @property
    def prefixes(self) -> Mapping[str, str]:
        """The prefixes of ``map``."""
        return self.map if isinstance(self.map, Mapping) else {}

    @cached_property
    def selection(self) -> LayerSelection:
        """The layers that are compared."""
        return LayerSelection(self.layers, self.types, self.depth, self.leaves)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of records that are compared; empty for the default."""
        return frozenset(resolve_kinds(self.what, VALUE_KINDS) if self.what else ())

    @property
    def is_local(self) -> bool:
        """Whether modules are compared one by one."""
        return self.local or self.floor is not None

    @property
    def wants_floor(self) -> bool | None:
        """Whether a floor is to be measured; None if it is where that is possible."""
        if self.floor is None and self.rtol is None and self.atol is None:
            return None
        return self.floor == FLOAT64

    @property
    def has_input(self) -> bool:
        """Whether the input is given, or its shape."""
        return self.input is not None or self.shape is not None

    @cached_property
    def requests(self) -> tuple[Request, Request]:
        """The runs of A and of B, on the input as A takes it."""
        input = InputRequest(
            *(self.input, self.shape, self.preprocess, self.size, self.mean, self.std),
            *(self.tokenizer, self.chat),
        )

        def request(side: int, model: Any, options: dict[str, Any]) -> Request:
            train = (self.train_a, self.train_b)[side]
            train = self.train if train is None else train
            dtype, device = options.pop("dtype"), options.pop("device")
            with label_errors(side):
                return Request(
                    "diff",
                    ModelRequest(model, trust=self.trust, **options),
                    input=input,
                    run=RunOptions(self.seed, dtype, device, train=train),
                )

        options_a, options_b = split_paired_options(vars(self), (self.a, self.b))
        return request(0, self.a, options_a), request(1, self.b, options_b)


@dataclass(frozen=True)
class DumpRequest(DiffRequest):
    """How a model or a capture, A, is compared with the dump of another program, B."""

    def __post_init__(self) -> None:
        for name in ("layers", "types", "what"):
            hold_iterable(self, name)
        for name in PAIRED_OPTIONS:
            if len(_as_list(getattr(self, name))) > 1:
                raise RequestError(
                    f"{spell_option(name)} is given twice, but only A is a model.", "Give it once."
                )
        self.of_a  # noqa: B018 - computed for its checks

    @cached_property
    def of_a(self) -> DiffRequest:
        """The request with A in place of the dump."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return DiffRequest(**own | {"b": self.a, "map": None})


@dataclass(frozen=True)
class RunDiffOptions(ExactDiffOptions):
    """How two training runs are compared.

    ``strict`` requires the same series and the same steps.
    """

    shift: int = same_setting(DiffRequest, "shift")


def are_runs(a: object, b: object) -> bool:
    """Whether A and B are folders of training runs; False if neither is."""
    is_run = [isinstance(one, str | os.PathLike) and is_run_folder(one) for one in (a, b)]
    if is_run[0] != is_run[1]:
        run, other = (a, b) if is_run[0] else (b, a)
        name = "the other"
        if isinstance(other, str | os.PathLike):
            name = os.fspath(other)
            if not os.path.exists(name):
                check_model_spec(name)  # it may be a missing file
        raise RequestError(
            f"{run} is the folder of a training run and {name} is not; diff compares two of the"
            " same kind.",
            "Name two folders that 'hookscope run' wrote.",
        )
    return is_run[0]


def check_more_runs(a: Any, b: Any, more: Sequence[Any]) -> None:
    """Raise RequestError if there are more than two things to compare that are not runs."""
    if not more:
        return
    for one in (a, b, *more):
        if not (isinstance(one, str | os.PathLike) and is_run_folder(one)):
            raise RequestError(
                f"{one} is not the folder of a training run, and only runs are compared with more"
                " than one other.",
                "Name two things to compare, or run folders alone.",
            )


def check_no_fingerprint(a: object, b: object) -> None:
    """Raise RequestError for a fingerprint that is missing, first, or beside another file."""
    for path in (os.fspath(one) for one in (a, b) if isinstance(one, str | os.PathLike)):
        if path.endswith(FINGERPRINT) and not os.path.exists(path):
            hint = near_files(path, "'hookscope fingerprint' writes such files.")
            raise RequestError(f"There is no file {path!r}.", hint)
    found = [is_fingerprint(one) for one in (a, b)]
    if not any(found):
        return
    own = a if found[0] else b
    raise RequestError(
        f"{own} is a fingerprint; it is compared with another one, or with a model that is named"
        " before it.",
        f"Write: hookscope diff MODEL {quote_word(str(own))}",
    )


def are_features(a: object, b: object) -> bool:
    """Whether both A and B are features folders."""
    return all(isinstance(one, str | os.PathLike) and holds_features(one) for one in (a, b))


def are_captures(a: Any, b: Any) -> bool:
    """Whether A and B are files that hookscope wrote; False if neither is."""
    for side in (a, b):
        if isinstance(side, str | os.PathLike) and holds_features(side):
            raise RequestError(
                f"{side} is a features folder, and the other is not; diff compares two of the same"
                " kind.",
                f"Convert it to a file first: hookscope export {quote_word(os.fspath(side))}",
            )
    a_is_capture, b_is_capture = _is_capture(a), _is_capture(b)
    if a_is_capture != b_is_capture:
        capture, model = (a, b) if a_is_capture else (b, a)
        spec = "MODEL"
        if isinstance(model, str | os.PathLike):
            spec = os.fspath(model)
            check_model_spec(spec)  # it may be a missing file
        raise RequestError(
            f"{capture} is a capture and {spec} is a model; diff compares two of the same kind.",
            f"Capture the model first, on the same input: hookscope capture {quote_word(spec)}",
        )
    return a_is_capture


def _is_capture(side: Any) -> bool:
    return isinstance(side, str | os.PathLike) and is_hookscope_file(Path(side))


def split_paired_options(
    values: Mapping[str, Any], models: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of model A and those of model B, as a command of one model takes them.

    An option that is given once counts for both. But weights, their ``rename`` and ``partial``, and
    model arguments go only to a model that can take them: a scripted, exported or ONNX file has its
    own. If one model is an ONNX file, ``onnx_optimize`` goes to it and all other options of this
    kind to the other model.
    """
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, default in PAIRED_OPTIONS.items():
        for side, value in zip(sides, _value_for_each(name, values[name], default), strict=True):
            side[name] = value
    sources = [_source_of(model, side) for side, model in enumerate(models)]
    self_contained = [source in _SELF_CONTAINED for source in sources]
    is_onnx = [source == model_spec.ONNX for source in sources]
    for name, default in PAIRED_OPTIONS.items():
        without = self_contained if name in ("weights", "model_args") else is_onnx
        if name == "onnx_optimize":
            without = [not onnx for onnx in is_onnx]
        if len(_as_list(values[name])) < 2 and without.count(True) == 1:
            sides[without.index(True)][name] = default
    for side in sides:
        from_file = model_spec.is_weights_file(os.fspath(side["weights"]))
        side["partial"] = values["partial"] and from_file
        side["rename"] = side["rename"] if from_file else None
    for name in ("rename", "partial"):
        if values[name] and not any(side[name] for side in sides):
            sides[0][name] = values[name]  # the loader raises the error
    return sides


def _value_for_each(name: str, value: Any, default: Any) -> tuple[Any, Any]:
    values = _as_list(value)
    if len(values) > 2:
        raise RequestError(
            f"--{name} is given {len(values)} times, but there are only two models.",
            "Give it once for both, or twice: for A and then for B.",
        )
    for_a, for_b = (values * 2)[:2] if values else (default, default)
    return for_a, for_b


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _source_of(model: Any, side: int) -> str:
    if not isinstance(model, str | os.PathLike):
        return model_spec.LIVE
    with label_errors(side):
        return check_model_spec(os.fspath(model)).source
