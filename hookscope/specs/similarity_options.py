"""The measures of similarity between layers, and the options of ``similar``. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice
from hookscope.specs.patterns import as_texts, stored_layers
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_byte_count

CKA, CKA_DEBIASED, CKA_RBF = "cka", "cka-debiased", "cka-rbf"
RSA, PROCRUSTES, KNN, SVCCA = "rsa", "procrustes", "knn", "svcca"
CORRELATION, COSINE, EUCLIDEAN = "correlation", "cosine", "euclidean"
PEARSON, SPEARMAN = "pearson", "spearman"
DISTANCES = (CORRELATION, COSINE, EUCLIDEAN)
CORRELATIONS = (PEARSON, SPEARMAN)
MIN_ROWS = 4  # of every measure; the debiased CKA divides by N - 2 and the like


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
        check_choice("by", self.by, MEASURES)
        check_choice("correlation", self.correlation, CORRELATIONS)
        if self.distance is not None:
            check_choice("distance", self.distance, DISTANCES)
            if not self.measure.distance:
                raise RequestError(
                    f"--distance is for rsa and knn, and {self.by} has no distance of its own.",
                    "Leave it out, or choose another measure with --by.",
                )
        if self.correlation != PEARSON and self.by != RSA:
            raise RequestError(f"--correlation is for rsa, not for {self.by}.", "Leave it out.")
        for name in ("neighbors", "every", "memory"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, not {getattr(self, name)}.")

    @property
    def measure(self) -> Measure:
        """The chosen measure."""
        return MEASURES[self.by]

    @property
    def resolved_distance(self) -> str | None:
        """The distance between rows; None if the measure has none."""
        return self.distance or self.measure.distance
