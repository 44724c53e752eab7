"""The options of ``similar``, ``probe`` and ``top``, and the measures of similarity. Torch-free."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.patterns import as_texts, stored_layers
from hookscope.specs.settings import same_setting, setting
from hookscope.specs.value_readers import read_byte_count, read_indices

CKA, CKA_DEBIASED, CKA_RBF = "cka", "cka-debiased", "cka-rbf"
RSA, PROCRUSTES, KNN, SVCCA = "rsa", "procrustes", "knn", "svcca"
CORRELATION, COSINE, EUCLIDEAN = "correlation", "cosine", "euclidean"
PEARSON, SPEARMAN = "pearson", "spearman"
DISTANCES = (CORRELATION, COSINE, EUCLIDEAN)
CORRELATIONS = (PEARSON, SPEARMAN)
MIN_ROWS = 4  # of every measure; the debiased CKA divides by N - 2 and the like

LOGISTIC, RIDGE = "logistic", "ridge"
PROBES = (LOGISTIC, RIDGE)
MAX, MEAN = "max", "mean"
POSITION_REDUCTIONS = (MAX, MEAN)
DEFAULT_UNITS = 16  # the first ones, if none are named
MOST_COUNT = 1000
PCA, UMAP, TSNE = "pca", "umap", "tsne"
PROJECTIONS = (PCA, UMAP, TSNE)


@dataclass(frozen=True)
class Measure:
    """A measure of similarity."""

    name: str
    lowest: float
    distance: str | None = None
    rows_squared: bool = False


MEASURES = {
    CKA: Measure("linear CKA (biased)", 0),
    CKA_DEBIASED: Measure("linear CKA (debiased)", -1),
    CKA_RBF: Measure("RBF CKA (biased)", 0, rows_squared=True),
    RSA: Measure("representational similarity (RSA)", -1, CORRELATION, rows_squared=True),
    PROCRUSTES: Measure("Procrustes similarity", 0),
    KNN: Measure("mutual nearest neighbours", 0, COSINE),
    SVCCA: Measure("SVCCA (99% of the variance)", 0),
}


@dataclass(frozen=True)
class SimilarityOptions:
    """How the layers of features folders are compared."""

    section = "Similarity"

    by: str = setting(
        CKA,
        "Measure of similarity.",
        choices=tuple(MEASURES),
        python="``cka`` (linear, biased), ``cka-debiased``, ``cka-rbf``, ``rsa``, ``procrustes``,"
        " ``knn`` (mutual nearest neighbours) or ``svcca``.",
    )
    layers: str | Iterable[str] = stored_layers()
    distance: str | None = setting(
        None,
        "Distance between rows. Default: correlation for rsa, cosine for knn.",
        choices=DISTANCES,
        python="between rows: ``correlation`` (default of ``rsa``), ``cosine`` (default of"
        " ``knn``) or ``euclidean``.",
    )
    correlation: str = setting(
        PEARSON,
        "How rsa compares distances.",
        choices=CORRELATIONS,
        python="how ``rsa`` compares distances: ``pearson`` or ``spearman``.",
    )
    neighbors: int = setting(
        10,
        "Number of neighbours of knn.",
        metavar="N",
        minimum=1,
        python="the number of neighbours of ``knn``.",
    )
    every: int = setting(1, "Use every N-th row.", metavar="N", minimum=1)
    memory: int = setting(
        2 * 10**9,
        "Memory for products of features and pairs of rows.",
        kind="bytes",
        parse=read_byte_count,
        shell_default="2GB",
        python="bytes for products of features and for pairs of rows.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(as_texts(self.layers)))
        if self.distance is not None and not self.measure.distance:
            raise RequestError(
                f"--distance is for rsa and knn, and {self.by} has no distance of its own.",
                "Leave it out, or choose another measure with --by.",
            )
        if self.correlation != PEARSON and self.by != RSA:
            raise RequestError(f"--correlation is for rsa, not for {self.by}.", "Leave it out.")
        if self.memory < 1:
            raise RequestError(f"memory must be at least 1, not {self.memory}.")

    @property
    def measure(self) -> Measure:
        """The chosen measure."""
        return MEASURES[self.by]

    @property
    def resolved_distance(self) -> str | None:
        """The distance between rows; None if the measure has none."""
        return self.distance or self.measure.distance


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


@dataclass(frozen=True)
class TopOptions:
    """Which units are ranked, and how."""

    section = "Units"

    layer: str | None = setting(
        None,
        "Layer or key. Default: the only one.",
        flags=("--layer", "-l"),
        metavar="KEY",
        complete="layers",
        python="a layer or a key; None if the folder has only one.",
    )
    units: Sequence[int] | None = setting(
        None,
        "Units or channels, such as 0-15. Default: the first 16.",
        kind="list",
        parse=read_indices,
        python="numbers of units or channels; None for the first 16.",
    )
    direction: Any = setting(
        None,
        "File .npy of one or more directions instead of units.",
        file="file",
        python="in place of units: an array, or a ``.npy`` file of one, of shape (channels,) or"
        " (n, channels). The activation is the dot product.",
    )
    by: str = setting(
        MAX,
        "How positions become one number.",
        choices=POSITION_REDUCTIONS,
        python="``max`` or ``mean`` over positions.",
    )
    count: int = setting(
        8,
        "Inputs at each end.",
        metavar="N",
        minimum=1,
        maximum=MOST_COUNT,
        python="inputs of each end.",
    )
    dim: int | None = setting(
        None,
        "Channel dimension of a row, if detected wrongly (-1: last).",
        flags=("--channel-dim",),
        metavar="N",
        python="the dimension of the channels in one row; None to infer it from the layer.",
    )
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = setting(
        (),
        "Folder or file of inputs that are not beside the features. Repeatable.",
        flags=("--input", "-i"),
        metavar="PATH",
        file="path",
        many=True,
        python="folders or files from which inputs are read again. Without it, only those are that"
        " are in the folder that holds the features folder, or below it.",
    )

    def __post_init__(self) -> None:
        if self.units is not None and self.direction is not None:
            raise RequestError("Units and directions are both given.", "Leave out one of them.")
        if self.units is not None and not len(self.units):
            raise RequestError("No unit is named.", "Name some with --units, such as 0-15.")


@dataclass(frozen=True)
class ScatterOptions:
    """How the rows of a layer become points of a picture."""

    section = "Features"

    method: str | None = setting(
        None,
        "How rows become points. Default: pca.",
        choices=PROJECTIONS,
        python="how rows become points: ``pca`` (default), ``umap`` (needs umap-learn) or ``tsne``"
        " (needs scikit-learn).",
    )
    color_by: str | None = setting(
        None,
        "Stored column that colours the points. Default: label.",
        metavar="COLUMN",
        python="a column that is stored beside the rows and colours the points; None for"
        " ``label``, if there is one.",
    )
    neighbors: int = setting(
        5,
        "Number of nearest rows; the distance to the last one ranks outliers.",
        metavar="N",
        minimum=1,
    )
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = same_setting(
        TopOptions, "input", section="Features"
    )
