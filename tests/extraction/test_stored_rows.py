"""Runs that store reduced rows: what is on the disk, and that it can be resumed and verified."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.decomposition import PCA

import hookscope
from hookscope.errors import LayerError, RequestError
from hookscope.extraction.channel_statistics import QUANTILES
from tests.refusals import refused

from .conftest import contents
from .test_extract import extract, joined


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def whole(photos, tmp_path) -> dict[str, torch.Tensor]:
    """All rows as they are stored."""
    extract(photos, tmp_path / "whole")
    keys = ("relu/output", "relu:2/output", "head/output")
    return {key: joined(tmp_path / "whole", key) for key in keys}


def test_reduced_rows_are_those_of_the_whole_ones(photos, tmp_path, whole) -> None:
    for word, of in {
        "mean": lambda x: x.flatten(2).double().mean(2).float() if x.ndim > 2 else x,
        "max": lambda x: x.amax((2, 3)) if x.ndim > 2 else x,
        "flatten": lambda x: x.flatten(1),
        "max:all": lambda x: x.flatten(1).amax(1),
    }.items():
        out = tmp_path / word
        extract(photos, out, reduce=word)
        for key, rows in whole.items():
            assert torch.equal(joined(out, key), of(rows)), (word, key)
        for entry in manifest_of(out)["keys"]:
            assert entry["reduce"] == word
            assert entry["shape"] == list(of(whole[entry["key"]]).shape[1:])


def test_a_map_with_its_channels_last_is_reduced_over_its_positions(photos, tmp_path) -> None:
    source = tmp_path / "small.py"
    turned = "class Last(nn.Module):\n    def forward(self, x):\n        return x.movedim(1, 3)\n\n"
    source.write_text(
        source.read_text()
        .replace("class Small", f"{turned}class Small")
        .replace("self.pool =", "self.last = Last()\n        self.pool =")
        .replace("x = self.relu(x - 0.1)", "self.last(x)\n        x = self.relu(x - 0.1)")
    )
    for reduce, options in (("mean", {}), (None, {"stats_only": True})):
        out = tmp_path / f"out-{reduce}"
        extract(photos, out, layers=["relu", "last"], reduce=reduce, **options)
    assert torch.equal(
        joined(tmp_path / "out-mean", "last/output"),
        joined(tmp_path / "out-mean", "relu/output"),
    )
    found = load_file(tmp_path / "out-None" / "statistics.safetensors")
    assert torch.equal(found["last/output.mean"], found["relu/output.mean"])


def test_the_largest_lie_beside_their_places(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    extract(photos, out, reduce="topk:3")
    places = joined(out, "relu/output.index").long()
    expected = whole["relu/output"].flatten(1)
    assert torch.equal(joined(out, "relu/output"), expected.gather(1, places))
    entries = {key["key"]: key for key in manifest_of(out)["keys"]}
    assert entries["relu/output.index"]["dtype"] == "int32"
    assert entries["relu/output.index"]["what"] == "output.index"


def test_a_histogram_tells_its_edges(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    extract(photos, out, reduce="histogram", layers="relu")
    [first, _] = manifest_of(out)["keys"]
    edges = [-1e30, *first["edges"], 1e30]
    expected = [np.histogram(row.numpy(), edges)[0] for row in whole["relu/output"]]
    np.testing.assert_array_equal(joined(out, "relu/output").numpy(), expected)


def test_components_are_fitted_once_and_kept_beside(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    extract(photos, out, reduce="pca:2", layers="relu")
    data = whole["relu/output"].flatten(1).double().numpy()
    theirs = PCA(2, svd_solver="full").fit(data)
    fitted = load_file(out / "pca.safetensors")
    np.testing.assert_allclose(
        fitted["relu/output.explained_variance"], theirs.explained_variance_, rtol=1e-4
    )
    ours = joined(out, "relu/output").numpy()
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs.transform(data)), atol=1e-4)
    assert manifest_of(out)["fitted"]["file"] == "pca.safetensors"
    before = contents(out)
    for name in ("pca.safetensors", "rows-00000004.safetensors"):
        (out / name).write_bytes(b"damaged")
    extract(photos, out, reduce="pca:2", layers="relu", resume=True)
    assert contents(out) == before


def test_more_components_than_inputs_are_refused(photos, tmp_path) -> None:
    with refused(
        LayerError,
        "more than 12 observations of relu/output, and there are 12",
        hint="pca:12:space",
    ):
        extract(photos, tmp_path / "out", reduce="pca:12", layers="relu")


def test_what_is_offered_in_place_of_too_many_components_is_there(photos, tmp_path) -> None:
    for layer, offered in (("relu", 'reduce="pca:3:space"'), ("head", "or more inputs.")):
        with pytest.raises(LayerError, match="and there are 3") as caught:
            extract(photos, tmp_path / layer, layers=layer, reduce="pca:3", every=4)
        assert caught.value.hint.endswith(offered)


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


def test_a_reduction_can_be_stored_small(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    extract(photos, out, reduce="mean", store_dtype="float16", layers="relu")
    expected = whole["relu/output"].flatten(2).double().mean(2).float().half()
    assert torch.equal(joined(out, "relu/output"), expected)


def test_values_too_large_for_half_precision_are_told(photos, tmp_path, caplog) -> None:
    source = tmp_path / "small.py"
    source.write_text(source.read_text().replace("x - 0.1", "x * 1e6 + 1e6"))
    with caplog.at_level(logging.WARNING, "hookscope"):
        extract(photos, tmp_path / "out", store_dtype="float16", layers="relu")
    [line] = [r.getMessage() for r in caplog.records if "float16" in r.getMessage()]
    assert line == "relu:2/output: 12288 values are too large for float16 and became infinite"


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
    (tmp_path / "sound").mkdir()
    extract(photos, tmp_path / "stats", stats_only=True, **given)
    found = load_file(tmp_path / "stats" / "statistics.safetensors")
    assert found["relu/output.count"].tolist() == [11 * 256] * 4


@pytest.mark.parametrize("keep", [{"reduce": "pca:2"}, {"reduce": "topk:2"}, {"stats_only": True}])
def test_a_whole_batch_may_be_skipped(photos, tmp_path, keep) -> None:
    (photos / "06.jpg").write_bytes(b"\xff\xd8 no image")
    more = {"layers": ["relu", "head"], "skip_bad": True, "batch": 1}
    assert extract(photos, tmp_path / "out", **more, **keep).state.skipped == 1


def test_statistics_are_those_of_all_rows(photos, tmp_path, whole) -> None:
    out = tmp_path / "out"
    extract(photos, out, stats_only=True)
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
    document = manifest_of(out)
    [shard] = document["shards"]
    assert (shard["file"], shard["rows"]) == ("statistics.safetensors", 12)
    assert document["keys"][0]["reduce"] == "statistics"
    index = json.loads((out / "features.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(found)
    with pytest.raises(RequestError, match="contains statistics of all inputs, but no rows"):
        hookscope.load(out)["head"]


def test_statistics_open_with_show(photos, tmp_path, whole) -> None:
    extract(photos, tmp_path / "out", stats_only=True, layers="relu")
    file = tmp_path / "out" / "statistics.safetensors"
    assert "relu/output.std" in hookscope.load(file)
    line = [sys.executable, "-m", "hookscope", "show", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    header, first, second, *_ = (row.split() for row in done.stdout.splitlines())
    assert header[:6] == ["layer", "type", "what", "call", "channels", "values"]
    for row, key in ((first, "relu/output"), (second, "relu:2/output")):
        cells = dict(zip(header, row, strict=False))
        wide = whole[key].double()
        assert (cells["channels"], cells["values"]) == ("4", str(12 * 4 * 256))
        for name, true in (("mean", wide.mean()), ("std", wide.std(correction=0))):
            assert float(cells[name]) == pytest.approx(true.item(), rel=5e-6)
        assert float(cells["median"]) == pytest.approx(wide.median().item(), rel=1 / 32)
        assert float(cells["max"]) == pytest.approx(wide.max().item(), rel=5e-6)
        assert int(cells["dead"]) == (whole[key].amax((0, 2, 3)) <= 0).sum()
    assert "Over 12 inputs: " in done.stdout
    done = subprocess.run([*line, "relu/output.quantiles"], capture_output=True, text=True)
    assert "4x7" in done.stdout


def test_statistics_go_on_where_a_run_was_cut_short(photos, tmp_path) -> None:
    given = {"stats_only": True, "batch": 2}
    extract(photos, tmp_path / "undisturbed", **given)
    out, seen = tmp_path / "out", []

    def cut(state) -> None:
        seen.append(state.rows)
        if state.rows == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(photos, out, progress=cut, **given)
    assert list(out.glob("rows-*"))
    assert not (out / "statistics.safetensors").exists()
    done = extract(photos, out, resume=True, **given)
    assert 0 < done.resumed < 12
    assert done.resumed + done.state.rows == 12
    assert contents(out) == contents(tmp_path / "undisturbed")
    # As if it had been killed at the end, before it cleaned up.
    lines = [json.loads(line) for line in (out / "inputs.jsonl").read_text().splitlines()]
    left = manifest_of(out)["shards"][0] | {"first": 2, "rows": 2, "inputs": lines[2:4]}
    (out / ".parts").mkdir()
    (out / ".parts" / "00000002.json").write_text(json.dumps(left))
    again = extract(photos, out, resume=True, **given)
    assert (again.resumed, again.state.rows) == (12, 0)
    assert contents(out) == contents(tmp_path / "undisturbed")
    (out / "statistics.safetensors").write_bytes(b"damaged")
    (out / "rows-00000002.safetensors").write_bytes(b"of another time")
    extract(photos, out, resume=True, **given)
    assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["stats_only=True", pytest.param("reduce='pca:2'", marks=pytest.mark.exhaustive)]
)
@pytest.mark.exhaustive
def test_several_processes_keep_what_one_keeps(photos, tmp_path, option) -> None:
    text = (
        "import hookscope\n"
        "hookscope.extract('small.py:Small', 'OUT/', layers='relu', input=PHOTOS, batch=2,"
        " shard_size=1, workers=0, OPTION)\n"
    )
    text = text.replace("PHOTOS", repr(str(photos))).replace("OPTION", option)
    for name in ("one", "out"):
        (tmp_path / f"{name}.py").write_text(text.replace("OUT", name))
    subprocess.run([sys.executable, "one.py"], cwd=tmp_path, check=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*launch, "--nproc-per-node", "2", "out.py"], cwd=tmp_path, check=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_another_reduction_cannot_resume(photos, tmp_path) -> None:
    extract(photos, tmp_path / "out", reduce="mean")
    with pytest.raises(RequestError, match='reduce was "mean"'):
        extract(photos, tmp_path / "out", reduce="max", resume=True)
