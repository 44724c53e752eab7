"""Runs that store reduced rows: what is on the disk, and that it can be resumed and verified."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.decomposition import PCA
from torch import nn

import hookscope
from hookscope.errors import LayerError, RequestError
from hookscope.extraction.channel_statistics import QUANTILES
from tests.refusals import refused
from tests.zoo.specimen import Module

from .conftest import contents, entries, index_of, joined
from .conftest import extract_photos as extract


@pytest.fixture
def whole(photos, tmp_path) -> dict[str, torch.Tensor]:
    """All rows as they are stored."""
    extract(photos, tmp_path / "whole")
    keys = ("relu/output", "relu:2/output", "head/output")
    return {key: joined(tmp_path / "whole", key) for key in keys}


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).double().mean(2).float() if x.ndim > 2 else x


REDUCED = {
    "mean": mean,
    "max": lambda x: x.amax((2, 3)) if x.ndim > 2 else x,
    "flatten": lambda x: x.flatten(1),
    "max:all": lambda x: x.flatten(1).amax(1),
}


def test_reduced_rows_are_those_of_the_whole_ones(photos, tmp_path, whole) -> None:
    for word, of in REDUCED.items():
        out = tmp_path / word
        done = extract(photos, out, reduce=word)
        for key, rows in whole.items():
            assert torch.equal(joined(out, key), of(rows)), (word, key)
        for entry in done.manifest["keys"]:
            assert entry["reduce"] == word
            assert list(entry["shape"]) == list(of(whole[entry["key"]]).shape[1:])
    with pytest.raises(RequestError, match='reduce was "mean"'):
        extract(photos, tmp_path / "mean", reduce="max", resume=True)


def test_a_map_with_its_channels_last_is_reduced_over_its_positions(photos, tmp_path) -> None:
    last = Module(lambda self, x: x.movedim(1, 3))
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), last)
    given = {"layers": ["0", "1"], "input": str(photos), "preprocess": "none", "size": 16}
    hookscope.extract(net, tmp_path / "mean", reduce="mean", workers=0, **given)
    one, other = (joined(tmp_path / "mean", f"{n}/output") for n in (0, 1))
    assert one.shape == (12, 4) and torch.equal(one, other)
    hookscope.extract(net, tmp_path / "stats", stats_only=True, workers=0, **given)
    found = load_file(tmp_path / "stats" / "statistics.safetensors")
    assert torch.equal(found["0/output.mean"], found["1/output.mean"])


def test_the_largest_lie_beside_their_places(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    done = extract(photos, out, reduce="topk:3")
    places = joined(out, "relu/output.index").long()
    expected = whole["relu/output"].flatten(1)
    assert torch.equal(joined(out, "relu/output"), expected.gather(1, places))
    [entry] = [key for key in done.manifest["keys"] if key["key"] == "relu/output.index"]
    assert (entry["dtype"], entry["what"]) == ("int32", "output.index")


def test_a_histogram_tells_its_edges(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    [first, _] = extract(photos, out, reduce="histogram", layers="relu").manifest["keys"]
    edges = [-1e30, *first["edges"], 1e30]
    expected = [np.histogram(row.numpy(), edges)[0] for row in whole["relu/output"]]
    np.testing.assert_array_equal(joined(out, "relu/output").numpy(), expected)


def test_components_are_fitted_once_and_kept_beside(photos, tmp_path, whole) -> None:
    out, given = tmp_path / "out", {"reduce": "pca:2", "layers": "relu"}
    done = extract(photos, out, **given)
    data = whole["relu/output"].flatten(1).double().numpy()
    theirs = PCA(2, svd_solver="full").fit(data)
    variance = load_file(out / "pca.safetensors")["relu/output.explained_variance"]
    np.testing.assert_allclose(variance, theirs.explained_variance_, rtol=1e-4)
    ours = joined(out, "relu/output").numpy()
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs.transform(data)), atol=1e-4)
    assert done.manifest["fitted"]["file"] == "pca.safetensors"
    before = contents(out)
    for name in ("pca.safetensors", "rows-00000004.safetensors"):
        (out / name).write_bytes(b"damaged")
    extract(photos, out, resume=True, **given)
    assert contents(out) == before


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"layers": "relu", "reduce": "pca:12"}, "pca:12:space"),
        ({"layers": "relu", "reduce": "pca:3", "every": 4}, "pca:3:space"),
        ({"layers": "head", "reduce": "pca:3", "every": 4}, "more inputs"),
    ],
)
def test_more_components_than_inputs_are_refused(photos, tmp_path, given, hint) -> None:
    with refused(LayerError, f"there are {12 // given.get('every', 1)}", hint=hint):
        extract(photos, tmp_path / "out", **given)


def test_smaller_dtypes_are_those_of_the_rows(photos, tmp_path, whole) -> None:
    for word in ("float16", "bfloat16"):
        extract(photos, tmp_path / word, store_dtype=word)
        for key, rows in whole.items():
            assert torch.equal(joined(tmp_path / word, key), rows.to(getattr(torch, word)))
    out = tmp_path / "int8"
    extract(photos, out, store_dtype="int8")
    for key, rows in whole.items():
        scale = joined(out, f"{key}.scale")
        assert scale.shape == (12,)
        steps = scale.view(-1, *[1] * (rows.ndim - 1))
        assert ((joined(out, key) * steps - rows).abs() <= steps / 2 * 1.001).all()
    extract(photos, tmp_path / "mean", reduce="mean", store_dtype="float16", layers="relu")
    expected = mean(whole["relu/output"]).half()
    assert torch.equal(joined(tmp_path / "mean", "relu/output"), expected)


def test_values_too_large_for_half_precision_are_told(photos, tmp_path, caplog) -> None:
    source = tmp_path / "small.py"
    source.write_text(source.read_text().replace("x - 0.1", "x * 1e6 + 1e6"))
    with caplog.at_level(logging.WARNING, "hookscope"):
        extract(photos, tmp_path / "out", store_dtype="float16", layers="relu")
    [line] = [r.getMessage() for r in caplog.records if "float16" in r.getMessage()]
    assert line.startswith("relu:2/output: 12288 ")


def test_a_skipped_input_has_a_hollow_row_in_every_form(photos, tmp_path) -> None:
    (photos / "06.jpg").write_bytes(b"\xff\xd8 no image")
    given = {"layers": "relu", "skip_bad": True}
    extract(photos, tmp_path / "topk", reduce="topk:2", **given)
    assert joined(tmp_path / "topk", "relu/output")[6].isnan().all()
    assert (joined(tmp_path / "topk", "relu/output.index")[6] == 0).all()
    extract(photos, tmp_path / "int8", store_dtype="int8", **given)
    assert joined(tmp_path / "int8", "relu/output.scale")[6].isnan()
    read = hookscope.load(tmp_path / "int8")["relu"]
    for rows in (read[:], read.torch()[:].numpy()):
        assert np.isnan(rows[6]).all()
        assert np.isfinite(np.delete(rows, 6, 0)).all()
    extract(photos, tmp_path / "pca", reduce="pca:2", **given)
    rows = joined(tmp_path / "pca", "relu/output")
    assert rows.isnan().any(1).nonzero().tolist() == [[6]]
    extract(photos, tmp_path / "stats", stats_only=True, **given)
    found = load_file(tmp_path / "stats" / "statistics.safetensors")
    assert found["relu/output.count"].tolist() == [11 * 256] * 4


@pytest.mark.parametrize("keep", [{"reduce": "pca:2"}, {"reduce": "topk:2"}, {"stats_only": True}])
def test_a_whole_batch_may_be_skipped(photos, tmp_path, keep) -> None:
    (photos / "06.jpg").write_bytes(b"\xff\xd8 no image")
    assert extract(photos, tmp_path / "out", skip_bad=True, batch=1, **keep).state.skipped == 1


def test_statistics_are_those_of_all_rows(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    document = extract(photos, out, stats_only=True).manifest
    assert not list(out.glob("rows-*"))
    found = load_file(out / "statistics.safetensors")
    for key, rows in whole.items():
        wide = rows.double()
        wide = wide if wide.ndim == 2 else wide.flatten(2).movedim(1, 2).flatten(0, 1)
        array = wide.numpy()
        np.testing.assert_allclose(found[f"{key}.mean"], array.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found[f"{key}.std"], array.std(0), rtol=1e-10)
        np.testing.assert_array_equal(found[f"{key}.min"], array.min(0))
        np.testing.assert_array_equal(found[f"{key}.dead"], (array == 0).all(0))
        true = np.quantile(array, QUANTILES, axis=0, method="inverted_cdf").T
        off = np.abs(found[f"{key}.quantiles"].numpy() - true)
        assert (off <= np.maximum(np.abs(true) / 32, 2**-20)).all()
        peaks = rows.flatten(2).amax(2) if rows.ndim > 2 else rows
        order = np.argsort(-peaks.numpy(), axis=0, kind="stable")[:10].T
        np.testing.assert_array_equal(found[f"{key}.top_rows"], order)
    [shard] = document["shards"]
    assert (shard["file"], shard["rows"]) == ("statistics.safetensors", 12)
    assert document["keys"][0]["reduce"] == "statistics"
    assert set(index_of(out)["weight_map"]) == set(found)
    with pytest.raises(RequestError, match="statistics"):
        hookscope.load(out)["head"]


def test_statistics_go_on_where_a_run_was_cut_short(photos, tmp_path) -> None:
    given = {"stats_only": True, "batch": 2}
    extract(photos, tmp_path / "undisturbed", **given)
    whole, out = contents(tmp_path / "undisturbed"), tmp_path / "out"

    def cut(state) -> None:
        if state.rows == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(photos, out, progress=cut, **given)
    assert list(out.glob("rows-*"))
    assert not (out / "statistics.safetensors").exists()
    done = extract(photos, out, resume=True, **given)
    assert 0 < done.resumed < 12
    assert done.resumed + done.state.rows == 12
    assert contents(out) == whole
    # As if it had been killed at the end, before it cleaned up.
    left = {"first": 2, "rows": 2, "inputs": entries(out)[2:4]}
    (out / ".parts").mkdir()
    (out / ".parts" / "00000002.json").write_text(json.dumps(done.manifest["shards"][0] | left))
    again = extract(photos, out, resume=True, **given)
    assert (again.resumed, again.state.rows) == (12, 0)
    assert contents(out) == whole
    (out / "statistics.safetensors").write_bytes(b"damaged")
    (out / "rows-00000002.safetensors").write_bytes(b"of another time")
    extract(photos, out, resume=True, **given)
    assert contents(out) == whole
