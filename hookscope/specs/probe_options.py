"""The options of ``probe``, checked without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice
from hookscope.specs.patterns import as_texts, stored_layers
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_byte_count

LOGISTIC, RIDGE = "logistic", "ridge"
PROBES = (LOGISTIC, RIDGE)


@dataclass(frozen=True)
class ProbeOptions:
    """How layers are probed."""

    section = "Probe"

    labels: str = setting(
        "label",
        "Stored column, or CSV file with a label a row.",
        metavar="COLUMN|FILE",
        python="a column that is stored beside the rows (see docs/datasets.md), or a CSV file with"
        " a label in each line, in the order of the rows.",
    )
    layers: str | Iterable[str] = stored_layers()
    by: str | None = setting(
        None,
        "Kind of probe. Default: ridge for numbers that are not whole.",
        choices=PROBES,
        python="``logistic`` (accuracy) or ``ridge`` (R^2). None: ridge if labels are numbers that"
        " are not all whole.",
    )
    splits: int = setting(
        5,
        "Number of random splits.",
        metavar="N",
        minimum=1,
        python="number of random splits; their seeds are ``seed``, ``seed + 1``, ...",
    )
    test: float = setting(
        0.25,
        "Share of rows to hold out.",
        metavar="SHARE",
        python="share of the rows that is held out.",
    )
    l2: float = setting(
        1.0,
        "Strength of the L2 penalty.",
        metavar="X",
        python="strength of the penalty: alpha of ridge, 1 / C of logistic regression.",
    )
    seed: int = setting(
        0,
        "Seed of the first split.",
        metavar="N",
        minimum=0,
        shared="HOOKSCOPE_SEED",
        python="of the first split.",
    )
    memory: int = setting(
        2 * 10**9,
        "Memory for the rows of a layer.",
        kind="bytes",
        parse=read_byte_count,
        shell_default="2GB",
        python="bytes for the rows of one layer.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(as_texts(self.layers)))
        check_choice("by", self.by or LOGISTIC, PROBES)
        if self.splits < 1:
            raise RequestError(f"splits must be at least 1, not {self.splits}.")
        if not 0 < self.test < 1:
            raise RequestError(
                f"test is {self.test:g}, and a share of the rows is between 0 and 1.", "Use 0.25."
            )
        if not (self.l2 > 0 and math.isfinite(self.l2)):
            raise RequestError(f"l2 must be above 0 and finite, not {self.l2:g}.", "Use 1.")
        if not 0 <= self.seed <= 2**32 - self.splits:
            raise RequestError(
                f"{self.seed} is not a valid seed.", "Use a number from 0 up to 2**32 - 1."
            )
