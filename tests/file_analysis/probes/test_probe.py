"""Linear probes, compared with scikit-learn used by hand on its handwritten digits."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

import hookscope
from hookscope.errors import EnvironmentFault, RequestError
from tests.extraction.handwritten_features import write_features
from tests.file_analysis.inputs_table import set_column


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A folder with the pixels of 600 digits as a layer, and a constant one; pixels and classes."""
    pixels, classes = (values[:600] for values in load_digits(return_X_y=True))
    folder = tmp_path_factory.mktemp("digits") / "f"
    images = torch.from_numpy(pixels.reshape(-1, 8, 8)).float()
    write_features(folder, {"pixels/output": images, "same/output": torch.ones(600, 3)}, 256)
    set_column(folder, classes.tolist())
    return folder, pixels, classes


def standardized(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = train.std(0)
    spread[spread == 0] = 1
    return (train - train.mean(0)) / spread, (test - train.mean(0)) / spread


def test_accuracy_is_that_of_scikit_learn_by_hand(digits) -> None:
    folder, pixels, classes = digits
    found = hookscope.probe(folder, splits=2, seed=3, l2=10, test=0.3)
    for n, split in enumerate(found.splits):
        train, test = train_test_split(
            np.arange(600), test_size=0.3, random_state=3 + n, stratify=classes.astype(str)
        )
        test = np.sort(test)
        train = np.sort(train)
        x, held = standardized(pixels[train], pixels[test])
        model = LogisticRegression(C=0.1, max_iter=1000).fit(x, classes[train])
        wanted = np.mean(model.predict(held) == classes[test])
        assert found.layer("pixels").scores[n] == wanted > 0.9
        assert found.layer("pixels").train_scores[n] == model.score(x, classes[train])
        assert (split.seed, split.train, split.test) == (3 + n, 420, 180)
        digest = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()
        assert split.test_sha256 == digest
    assert found.classes == {str(n): int(np.sum(classes == n)) for n in range(10)}
    assert found.layer("same").mean == pytest.approx(found.baseline, abs=0.03)
    assert found.notes[0].startswith("same/output: ")
    scores = found.layer("pixels").scores
    assert found.layer("pixels").spread == pytest.approx(np.std(scores, ddof=1))


def test_ridge_gives_the_r2_of_scikit_learn(digits, tmp_path: Path) -> None:
    folder, pixels, _ = digits
    ink = pixels.mean(axis=1)
    labels = tmp_path / "ink.csv"
    labels.write_text("ink\n" + "".join(f"{float(value)!r}\n" for value in ink))
    found = hookscope.probe(folder, labels=str(labels), layers="pixels", splits=1)
    assert (found.method, found.score, found.classes) == ("ridge", "R2", {})
    train, test = (
        np.sort(part) for part in train_test_split(np.arange(600), test_size=0.25, random_state=0)
    )
    x, held = standardized(pixels[train], pixels[test])
    model = Ridge(alpha=1).fit(x, ink[train])
    wanted = r2_score(ink[test], model.predict(held))
    assert found.layer("pixels").mean == pytest.approx(wanted, abs=1e-12)
    assert found.baseline == pytest.approx(
        r2_score(ink[test], np.full(len(test), ink[train].mean()))
    )


def test_rows_without_a_label_are_left_out(digits, tmp_path: Path) -> None:
    folder, _, classes = digits
    labels = tmp_path / "y.csv"
    labels.write_text("".join(f"{c}\n" if n % 2 else '""\n' for n, c in enumerate(classes)))
    found = hookscope.probe(folder, labels=str(labels), layers="pixels", splits=1)
    assert sum(found.classes.values()) == 300
    [note] = found.notes
    assert "300 rows" in note


def test_a_layer_with_nan_has_a_note_and_others_keep_their_scores(tmp_path: Path) -> None:
    good = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[4, 1] = math.inf
    folder = write_features(tmp_path / "f", {"good/output": good, "bad/output": bad}, 6)
    set_column(folder, [*"ab" * 10])
    found = hookscope.probe(folder)
    assert found.layer("bad").scores == () and math.isnan(found.layer("bad").mean)
    assert len(found.layer("good").scores) == 5
    assert "row 4" in found.notes[0]


@pytest.mark.parametrize(
    ("labels", "options", "named"),
    [
        (None, {}, "'label'"),
        (["a"] * 20, {}, "20 labels are 'a'"),
        ([*"ab" * 9, "a", "c"], {}, "'c' has 1 row"),
        ([*"abcdefghij" * 2], {}, "15 .* 5 "),
        ([*"ab" * 10], {"by": "ridge"}, "'a'"),
        ([*"ab" * 10], {"memory": 100}, "1,920 bytes"),
        ([*"ab" * 10], {"test": 1.5}, "1.5"),
        ([*"ab" * 10], {"labels": "lable"}, "Did you mean label"),
        ([None] * 20, {}, "No row of .* has a label"),
        (None, {"labels": "1\n2\n"}, "2 labels, .* 20 rows"),
        (None, {"labels": "1,2\n" * 20}, "Line 1 of .* 2 cells"),
    ],
)
def test_labels_that_cannot_be_probed_are_refused(
    tmp_path: Path, labels, options, named: str
) -> None:
    folder = write_features(tmp_path / "f", {"a/output": torch.randn(20, 3)}, 6)
    if labels:
        set_column(folder, labels)
    if "\n" in options.get("labels", ""):
        (tmp_path / "y.csv").write_text(options["labels"])
        options = {"labels": str(tmp_path / "y.csv")}
    with pytest.raises(RequestError, match=named):
        hookscope.probe(folder, **options)


def test_without_scikit_learn_the_extra_is_named(digits, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(EnvironmentFault, match=r'pip install "hookscope\[probe\]"'):
        hookscope.probe(digits[0])
