"""Similarities of layers, compared with definitions in plain numpy, scipy and scikit-learn."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist, pdist
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.neighbors import NearestNeighbors

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis import layer_rows
from hookscope.files import strict_json
from tests.extraction.handwritten_features import write_features
from tests.file_analysis.inputs_table import change_inputs

WIDE, TALL = (
    (24, {"a/output": (9, 5), "b/output": (30,)}),
    (120, {"a/output": (9,), "b/output": (6,)}),
)


def features(folder: Path, rows: int, shapes: dict[str, tuple[int, ...]], seed: int = 0):
    """A folder of layers that depend on each other; and their float64 matrices."""
    random = np.random.default_rng(seed)
    common = random.normal(size=(rows, 4))
    arrays = {}
    for key, shape in shapes.items():
        width = math.prod(shape)
        noise = random.normal(size=(rows, width))
        values = common @ random.normal(size=(4, width)) + 0.5 * noise + random.normal(size=width)
        arrays[key] = values.reshape(rows, *shape).astype(np.float32)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    write_features(folder, tensors, 7)
    return folder, [array.reshape(rows, -1).astype(np.float64) for array in arrays.values()]


def hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    n = len(k)
    h = np.eye(n) - 1 / n
    return float(np.trace(k @ h @ l @ h))


def unbiased_hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    """Equation 5 of Song et al. (2012), with the diagonals set to zero."""
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
    one = np.ones(n)
    first = np.trace(k @ l) + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return float(first - 2 / (n - 2) * (one @ k @ l @ one)) / (n * (n - 3))


def rbf(x: np.ndarray) -> np.ndarray:
    squares = cdist(x, x) ** 2
    return np.exp(-squares / (2 * np.median(squares)))


def cca(x: np.ndarray, y: np.ndarray) -> float:
    """The mean canonical correlation of the singular vectors that have 99% of the variance."""
    bases = []
    for z in (x, y):
        u, s, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
        bases.append(u[:, : int(np.argmax(np.cumsum(s**2) / np.sum(s**2) >= 0.99)) + 1])
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean())


def neighbors(x: np.ndarray, y: np.ndarray, count: int, metric: str) -> float:
    both = []
    for z in (x, y):
        near = NearestNeighbors(n_neighbors=count + 1, metric=metric).fit(z).kneighbors(z)[1]
        both.append([set(row) - {i} for i, row in enumerate(near.tolist())])
    return float(np.mean([len(a & b) / count for a, b in zip(*both, strict=True)]))


def definition(by: str, x: np.ndarray, y: np.ndarray, **options) -> float:
    if by in ("cka", "cka-debiased", "cka-rbf"):
        k, l = (x @ x.T, y @ y.T) if by != "cka-rbf" else (rbf(x), rbf(y))  # noqa: E741
        of = unbiased_hsic if by == "cka-debiased" else hsic
        return of(k, l) / math.sqrt(of(k, k) * of(l, l))
    if by == "rsa":
        metric = options.get("distance", "correlation")
        correlate = spearmanr if options.get("correlation") == "spearman" else pearsonr
        return float(correlate(pdist(x, metric), pdist(y, metric)).statistic)
    if by == "procrustes":
        x, y = (z - z.mean(0) for z in (x, y))
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
        width = max(x.shape[1], y.shape[1])
        x, y = (np.pad(z, ((0, 0), (0, width - z.shape[1]))) for z in (x, y))
        rotation, _ = orthogonal_procrustes(x, y)
        return 1 - np.linalg.norm(x @ rotation - y) ** 2 / 2
    if by == "knn":
        return neighbors(x, y, options["neighbors"], options.get("distance", "cosine"))
    return cca(x, y)


CASES = [
    *({"by": by} for by in ("cka", "cka-debiased", "cka-rbf", "procrustes", "svcca", "rsa")),
    *({"by": "rsa", "distance": distance} for distance in ("cosine", "euclidean")),
    {"by": "rsa", "correlation": "spearman"},
    *({"by": "knn", "neighbors": 5, "distance": d} for d in ("cosine", "euclidean", "correlation")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("size", [WIDE, TALL], ids=["more features", "more rows"])
@pytest.mark.parametrize("block", [None, 1000])
def test_a_measure_is_its_definition(tmp_path: Path, monkeypatch, case, size, block) -> None:
    if block:  # several blocks of rows
        monkeypatch.setattr(layer_rows, "_BLOCK", block)
    folder, (x, y) = features(tmp_path / "f", *size)
    found = hookscope.similar(folder, **case)
    wanted = definition(x=x, y=y, **case)
    assert found.value("a", "b") == pytest.approx(wanted, abs=1e-9)
    assert found.value("b", "a") == found.value("a", "b")
    assert found.value("a", "a") == pytest.approx(1, abs=1e-9)
    assert found.rows == size[0]


@pytest.mark.parametrize("by", ["cka", "cka-debiased"])
def test_products_of_features_in_tiles_give_the_same(tmp_path: Path, by: str) -> None:
    folder, (x, y) = features(tmp_path / "f", *WIDE)
    # Less than the products of rows: 24 x 24 x 8 bytes for each of two layers.
    found = hookscope.similar(folder, by=by, memory=3000)
    assert found.value("a", "b") == pytest.approx(definition(by, x, y), abs=1e-9)


def test_two_folders_give_a_matrix_of_their_layers(tmp_path: Path) -> None:
    a, arrays = features(tmp_path / "a", 40, {"a/output": (9,), "b/output": (6,)})
    b, others = features(
        tmp_path / "b", 40, {"c/output": (3, 2), "d/output": (4,), "e/output": (2,)}, 1
    )
    found = hookscope.similar(a, b, by="rsa")
    wanted = [[definition("rsa", x, y) for y in others] for x in arrays]
    assert np.allclose(found.values, wanted, atol=1e-9)
    part = hookscope.similar(a, b, by="rsa", layers=["a", "d"])
    assert part.values == ((found.value("a", "d"),),)
    assert found.best(0) == int(np.argmax(wanted[0]))


def test_every_nth_row_is_used(tmp_path: Path) -> None:
    folder, (x, y) = features(tmp_path / "f", *TALL)
    for every in (3, 9):
        found = hookscope.similar(folder, every=every)
        wanted = definition("cka", x[::every], y[::every])
        assert found.value("a", "b") == pytest.approx(wanted, abs=1e-9)


def test_ranks_of_equal_distances_are_their_mean() -> None:
    from hookscope.file_analysis.similarity_measures import average_ranks

    values = np.random.default_rng(0).integers(0, 5, 50).astype(float)
    assert np.array_equal(average_ranks(values), rankdata(values))


def test_folders_of_different_inputs_are_refused(tmp_path: Path) -> None:
    a, _ = features(tmp_path / "a", *TALL)
    b, _ = features(tmp_path / "b", *TALL, seed=1)
    change_inputs(b, {17: {"path": "moved.jpg"}})  # the same file, by its hash
    assert hookscope.similar(a, b).rows == 120
    change_inputs(b, {17: {"sha256": "1"}})
    with pytest.raises(RequestError, match=r"Row 17 of .* moved.jpg"):
        hookscope.similar(a, b)
    c, _ = features(tmp_path / "c", *WIDE)
    with pytest.raises(RequestError, match=r"120 rows .* 24"):
        hookscope.similar(a, c)


def test_skipped_rows_are_left_out_of_both(tmp_path: Path) -> None:
    a, (x, _) = features(tmp_path / "a", *TALL)
    b, (_, y) = features(tmp_path / "b", *TALL, seed=1)
    change_inputs(b, {5: {"skipped": "it is damaged"}})
    found = hookscope.similar(a, b)
    assert found.rows == 119
    assert [note for note in found.notes if "1 row" in note]
    wanted = definition("cka", np.delete(x, 5, 0), np.delete(y, 5, 0))
    assert found.value("a", "b") == pytest.approx(wanted, abs=1e-9)


def test_layers_without_a_similarity_are_named_and_others_kept(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    good = torch.from_numpy(random.normal(size=(20, 3)))
    broken = good.clone()
    broken[7, 1] = math.nan
    same = torch.full((20, 4), 0.1, dtype=torch.float64)
    zero = good.clone()
    zero[3] = 0
    tensors = {"good/output": good, "nan/output": broken, "same/output": same, "zero/output": zero}
    folder = write_features(tmp_path / "f", tensors, 6)
    found = hookscope.similar(folder, by="rsa", distance="cosine")
    defined = [[not math.isnan(value) for value in row] for row in found.values]
    assert defined == [[True, False, False, False], *[[False] * 4] * 3]
    notes = "\n".join(found.notes)
    for key, said in (("nan", "row 7"), ("same", "0/0"), ("zero", "1 row ")):
        assert re.search(f"{key}/output: .*{said}", notes)
    assert '"NaN"' in strict_json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"by": "ckaa"}, "ckaa"),
        ({"distance": "cosine"}, "distance"),
        ({"by": "knn", "correlation": "spearman"}, "correlation"),
        ({"by": "knn", "neighbors": 30}, "30"),
        ({"every": 10}, "3 rows"),
        ({"by": "rsa", "memory": 1000}, "24 rows"),
        ({"by": "procrustes", "memory": 1000}, "a/output"),
        ({"layers": "nothing"}, "'nothing'"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, options, named: str) -> None:
    folder, _ = features(tmp_path / "f", *WIDE)
    with pytest.raises(RequestError, match=named):
        hookscope.similar(folder, **options)


def test_the_memory_of_pairs_of_rows_is_said_before(tmp_path: Path, caplog) -> None:
    folder, _ = features(tmp_path / "f", *WIDE)
    with caplog.at_level("INFO", "hookscope"):
        hookscope.similar(folder, by="rsa")
    assert "13,632 bytes" in caplog.text
