"""The options of ``extract``, and the reductions of what it stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.choices import AUTOCASTS, DECODINGS, DTYPE_ALIASES
from hookscope.specs.command_options import CaptureOptions, hold_iterable
from hookscope.specs.request import Request
from hookscope.specs.settings import same_setting, setting
from hookscope.specs.tensor_key import VALUE_KINDS, resolve_kinds
from hookscope.specs.value_readers import read_byte_count

MEAN, MAX, FLATTEN = "mean", "max", "flatten"
FIRST, LAST, CLS = "first", "last", "cls"  # one token
TOPK, PCA, HISTOGRAM = "topk", "pca", "histogram"
SPACE, TOKENS, ALL = "space", "tokens", "all"
INDEX_SUFFIX = ".index"  # added to the key of values that were chosen: their indices

COUNTED = (TOPK, PCA)  # these take a number K
OVER = (SPACE, TOKENS, ALL)
_WHOLE = (FIRST, LAST, CLS, FLATTEN)  # these always reduce the same axes
FORMS = (MEAN, MAX, FIRST, LAST, CLS, FLATTEN, "topk:K", "pca:K", HISTOGRAM)
_NAMES = tuple(form.partition(":")[0] for form in FORMS)

FLOAT16, BFLOAT16, INT8 = "float16", "bfloat16", "int8"
STORE_DTYPES = (FLOAT16, BFLOAT16, INT8)


@dataclass(frozen=True)
class Reduction:
    """How each row of a layer's tensor becomes smaller."""

    text: str
    name: str
    count: int = 0
    over: str | None = None


@dataclass(frozen=True)
class StorageOptions:
    """What is stored of the rows."""

    reduction: Reduction | None = None
    dtype: str | None = None
    stats_only: bool = False


def parse_storage(reduce: str | None, store_dtype: str | None, stats_only: bool) -> StorageOptions:
    """Parse the keywords of ``hookscope.extract`` that say what is stored."""
    if store_dtype is not None and store_dtype not in STORE_DTYPES:
        raise RequestError(
            f"{store_dtype!r} is not a valid dtype to store.",
            did_you_mean(store_dtype, STORE_DTYPES) or f"Choose among {', '.join(STORE_DTYPES)}.",
        )
    if stats_only and (reduce or store_dtype):
        other = "--reduce" if reduce else "--store-dtype"
        raise RequestError(
            f"--stats-only stores no rows, so {other} has no effect.",
            "Leave out one of the two.",
        )
    return StorageOptions(parse_reduction(reduce) if reduce else None, store_dtype, stats_only)


def parse_reduction(spec: str) -> Reduction:
    """Parse a reduction: ``NAME[:K][:OVER]``."""
    name, *rest = spec.split(":")
    if name not in _NAMES:
        known = f"Choose among {', '.join(FORMS)}."
        raise RequestError(
            f"{spec!r} is not a valid reduction.", did_you_mean(name, _NAMES) or known
        )
    count = 0
    if name in COUNTED:
        number = rest.pop(0) if rest else ""
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise RequestError(
                f"{spec!r} has no valid number of values to store.",
                f"Write {name}:10, for example.",
            )
        count = int(number)
    over = rest.pop(0) if rest else None
    if over is not None and name in _WHOLE:
        raise RequestError(
            f"{name} always reduces the same axes and does not take {over!r}.", f"Write {name}."
        )
    if rest or over not in (None, *OVER):
        wrong = rest[0] if rest else str(over)
        raise RequestError(
            f"{wrong!r} in {spec!r} is not a valid choice of axes.",
            did_you_mean(wrong, OVER) or f"Choose among {', '.join(OVER)}.",
        )
    return Reduction(spec, name, count, over)


@dataclass(frozen=True)
class ExtractOptions:
    """How ``extract`` reads a dataset, and what it stores of each row."""

    section = "Dataset"

    what: str | Iterable[str] = same_setting(
        CaptureOptions,
        "what",
        aliases=None,
        choices=tuple(VALUE_KINDS),
        python="``output``, ``input`` or both.",
    )
    batch: int | None = setting(
        None,
        "Batch size. Default: what fits into --memory, up to 64 (CPU: up to 5 MB of input).",
        flags=("--batch", "--batch-size"),
        metavar="N",
        minimum=1,
        python="the batch size. None: as large as ``memory`` allows, up to 64, and on a CPU up to"
        " 5 MB of inputs.",
    )
    memory: int = setting(
        2 * 10**9,
        "Estimated memory for batches, without the model.",
        kind="bytes",
        parse=read_byte_count,
        shell_default="2GB",
        python="memory budget in bytes, excluding the model (estimated).",
    )
    workers: int | None = setting(
        None,
        "Processes that read and preprocess. Default: number of cores - 1.",
        metavar="N",
        minimum=0,
        python="processes that read and preprocess inputs; None for the number of cores minus one.",
    )
    shard_size: int | None = setting(
        None,
        "Approximate size of a result file. Default: up to 512MB, in at least 16 files if"
        " there are 16 batches.",
        kind="bytes",
        parse=read_byte_count,
        python="approximate size of one file in bytes. None: up to 512 MB, and at least 16 files if"
        " there are enough batches.",
    )
    every: int = setting(
        1, "Use every N-th input, starting with the first.", metavar="N", minimum=1
    )
    reduce: str | None = setting(
        None,
        "Reduction of each row, such as mean or topk:5. See 'hookscope help reductions'.",
        metavar="REDUCTION",
        python="reduce each row: ``mean``, ``max``, ``first``, ``last``, ``cls``, ``flatten``,"
        " ``topk:K``, ``pca:K`` or ``histogram``, optionally followed by ``:space``, ``:tokens``"
        " or ``:all``.",
    )
    store_dtype: str | None = setting(
        None,
        f"Stored dtype of floating-point values: {', '.join(STORE_DTYPES)}.",
        choices=STORE_DTYPES,
        aliases=DTYPE_ALIASES,
        metavar="DTYPE",
        python="dtype of the stored floating-point values: ``float16``, ``bfloat16`` or ``int8``."
        " The model computes in ``dtype``.",
    )
    stats_only: bool = setting(
        False,
        "Store statistics of each channel over all inputs, but no rows.",
        python="store statistics of each channel over all inputs instead of rows.",
    )
    decode: str = setting(
        DECODINGS[0],
        "JPEG decoding: fast decodes large images at reduced size.",
        choices=DECODINGS,
        python="``exact`` for the same pixels as ``capture``; ``fast`` to scale a JPEG down while"
        " it is decoded, to at least twice the model's input size.",
    )
    stop: bool = setting(
        True,
        "Stop each forward pass after the last selected layer, if execution order is static."
        " Default: on.",
        python="stop each forward pass after the last selected layer, if a pass on the meta device"
        " shows that the order of layers does not depend on the data.",
    )
    skip_bad: bool = setting(
        False,
        "Skip unusable files. Their rows are NaN.",
        python="skip inputs that cannot be used. Their rows are NaN and marked in the table.",
    )
    resume: bool = setting(
        False,
        "Resume an interrupted run. Damaged shards are rewritten.",
        python="resume an interrupted run with the same options, and rewrite damaged shards.",
    )
    force: bool = setting(
        False,
        "Replace the results in the folder.",
        section="Output",
        python="replace the results of another run.",
    )
    channels_last: bool = setting(
        False,
        "Use the channels-last memory format.",
        python="use this memory format for images and weights.",
    )
    autocast: str | None = setting(
        None,
        "Run under torch.autocast with this dtype.",
        choices=AUTOCASTS,
        aliases=DTYPE_ALIASES,
        python="``bfloat16`` or ``float16``, for ``torch.autocast``.",
    )
    max_tokens: int | None = setting(
        None,
        "Cut longer texts to N tokens.",
        section="Input",
        metavar="N",
        minimum=1,
        python="cut longer texts to this number of tokens, special tokens included.",
    )

    def __post_init__(self) -> None:
        for name in ("memory", "shard_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name} must be at least 1, not {value}.")
        hold_iterable(self, "what")
        self.kinds, self.storing  # noqa: B018 - computed for their checks

    def check_request(self, request: Request) -> None:
        """Raise RequestError if there is no input."""
        if request.input.input is None or request.input.input == []:
            raise RequestError("No input is given.", "Give a folder of images: --input photos/")

    @property
    def kinds(self) -> set[str]:
        """The kinds of records to make."""
        return resolve_kinds(self.what, VALUE_KINDS)

    @property
    def storing(self) -> StorageOptions:
        """What is stored of each row."""
        return parse_storage(self.reduce, self.store_dtype, self.stats_only)
