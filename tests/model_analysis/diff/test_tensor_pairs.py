"""Which tensors are compared, and their figures: by hand, by numpy and by torch.testing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope.errors import RequestError
from hookscope.file_analysis.capture_comparator import Comparator
from hookscope.file_analysis.error_sums import measure_errors, measure_same
from hookscope.file_analysis.record_matches import match_records
from hookscope.results.diff_result import ErrorMetrics, TensorComparison
from hookscope.results.records import Record, key_of
from hookscope.results.stats import BLOCK
from hookscope.specs.tolerances import check_tolerances, tolerances
from hookscope.tensors.tensor_stats import numpy_blocks

ODD = (0.0, -0.0, 1.0, 1.0 + 1e-6, -1.0, 1e-30, 3e38, math.inf, -math.inf, math.nan, 1e-5)
DTYPES = sorted(
    (value for value in vars(torch).values() if isinstance(value, torch.dtype)), key=str
)


def figures(a: torch.Tensor, b: torch.Tensor, atol=0.0, rtol=0.0, equal_nan=False) -> ErrorMetrics:
    return measure_errors(numpy_blocks(a), numpy_blocks(b), atol, rtol, equal_nan)


def judged(a: torch.Tensor, b: torch.Tensor, **strictness) -> TensorComparison:
    one, two = (
        Record("x/output", "x", "X", 1, "output", "output", tuple(t.shape), str(t.dtype)[6:], "cpu")
        for t in (a, b)
    )
    judge = Comparator(**{"atol": None, "rtol": None, "equal_nan": False} | strictness)
    return judge.compare(one, two, "name", lambda: numpy_blocks(a), lambda: numpy_blocks(b))


def test_the_figures_are_those_of_numpy_by_hand() -> None:
    source = np.random.default_rng(0)
    a = source.standard_normal(3 * BLOCK + 17)
    b = a + source.standard_normal(a.size) * 1e-3
    b[5] = a[5]
    found = measure_errors(np.array_split(a, 4), np.array_split(b, 4), 1e-3, 0.1)
    gap = np.abs(a - b)
    assert found.max_abs == gap.max()
    assert found.max_rel == (gap / np.abs(a)).max()
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert found.cosine == pytest.approx(cosine, rel=1e-12)
    ratio = np.sum(a**2) / np.sum((a - b) ** 2)
    assert found.snr == pytest.approx(10 * np.log10(ratio), rel=1e-12)
    assert found.beyond == np.sum(gap > 1e-3 + 0.1 * np.abs(a))
    assert found.unequal == a.size - 1


@pytest.mark.parametrize("two", DTYPES)
def test_default_tolerances_are_those_of_torch_testing(two) -> None:
    from torch.testing._comparison import default_tolerances

    for one in DTYPES:
        rtol, atol = default_tolerances(one, two)
        assert tolerances(str(one)[6:], str(two)[6:]) == (atol, rtol)


@given(st.lists(st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)), min_size=1), st.booleans())
def test_what_lies_beyond_is_what_torch_isclose_says(pairs, equal_nan) -> None:
    a, b = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    for atol, rtol in ((0.0, 0.0), (1e-5, 1.3e-6), (1e-8, 2.0)):
        close = torch.isclose(b, a, rtol, atol, equal_nan)
        assert figures(a, b, atol, rtol, equal_nan).beyond == int((~close).sum())
    complex_a, complex_b = torch.complex(a, b), torch.complex(b, a)
    close = torch.isclose(complex_b, complex_a, 1e-3, 1e-3, equal_nan)
    found = figures(complex_a, complex_b, 1e-3, 1e-3, equal_nan)
    assert found.beyond == int((~close).sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_equal_tensors_are_equal_in_every_dtype(dtype) -> None:
    a = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    pair = judged(a, a.clone())
    assert pair.figures == ErrorMetrics(0.0, 0.0, 1.0, math.inf)
    assert (pair.verdict, pair.share, pair.reason) == ("equal", 0.0, "")


def test_whole_numbers_must_be_equal_and_are_told_exactly() -> None:
    a = torch.tensor([2**62, -(2**63), 7])
    b = torch.tensor([2**62 + 1, 2**63 - 1, 7])
    pair = judged(a, b)
    assert (pair.verdict, pair.figures.unequal, pair.figures.beyond) == ("differs", 2, 2)
    assert pair.figures.max_abs == float(2**64 - 1)
    assert judged(torch.tensor([2**62]), torch.tensor([2**62 + 1])).figures.max_abs == 1.0
    flipped = judged(torch.tensor([True, False]), torch.tensor([True, True]))
    assert (flipped.figures.max_abs, flipped.figures.beyond) == (1.0, 1)


def test_complex_numbers_differ_by_magnitude() -> None:
    found = judged(torch.tensor([3 + 4j]), torch.tensor([3 + 0j])).figures
    assert (found.max_abs, found.max_rel) == (4.0, 0.8)
    assert found.cosine == pytest.approx(0.6)
    assert found.snr == pytest.approx(10 * math.log10(25 / 16))


def test_nan_is_a_difference_with_a_reason_unless_taken_as_equal() -> None:
    plain, nan = torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])
    assert judged(plain, nan).reason == "NaN in B alone: 1"
    assert judged(nan, plain).reason == "NaN in A alone: 1"
    both = judged(nan, nan.clone())
    assert both.reason.startswith("NaN in both")
    assert (both.verdict, both.figures.beyond, both.figures.max_abs) == ("differs", 1, 0.0)
    assert judged(nan, nan.clone(), equal_nan=True).verdict == "equal"
    assert judged(plain, nan, equal_nan=True).verdict == "differs"
    nothing = judged(nan[1:], nan[1:].clone()).figures
    assert (nothing.max_abs, nothing.cosine, nothing.snr) == (None, None, None)


def test_infinities_of_one_sign_are_equal() -> None:
    inf = torch.tensor([math.inf, 1.0])
    assert judged(inf, inf.clone()).verdict == "equal"
    assert judged(inf, -inf).figures.max_abs == math.inf
    assert judged(torch.tensor([1.0]), inf[:1]).figures.snr is None


def test_shapes_and_kinds_of_numbers_are_differences_with_a_reason() -> None:
    pair = judged(torch.ones(2, 3), torch.ones(3, 2))
    assert (pair.verdict, pair.reason, pair.share) == ("differs", "shape 2x3 in A, 3x2 in B", None)
    assert judged(torch.ones(2), torch.ones(2, dtype=torch.int64)).reason == (
        "float32 in A, int64 in B"
    )
    assert judged(torch.ones(2), torch.ones(2).bfloat16()).verdict == "close"
    assert judged(torch.ones(2).int(), torch.ones(2).long()).verdict == "close"


def test_the_edges_have_figures() -> None:
    empty = judged(torch.ones(0, 3), torch.ones(0, 3))
    assert (empty.verdict, empty.share, empty.figures.max_abs) == ("equal", 0.0, None)
    zeros = judged(torch.zeros(2), torch.zeros(2)).figures
    assert (zeros.cosine, zeros.snr, zeros.max_rel) == (None, math.inf, 0.0)
    off = judged(torch.zeros(2), torch.ones(2)).figures
    assert (off.cosine, off.snr, off.max_rel) == (None, -math.inf, math.inf)


def test_tolerances_are_checked() -> None:
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(RequestError, match="tolerance"):
            check_tolerances(None, bad)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int64, np.complex64, bool]
)
def test_equal_tensors_have_the_figures_of_the_sums_over_all_entries(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = (rng.standard_normal(100_000) * 3).astype(dtype)
    if a.dtype.kind == "f":
        a[70_000], a[:3] = np.inf, -0.0
    split = np.array_split(a, 3), np.array_split(np.array(a), 3)
    assert measure_same(*split) == measure_errors(*split, 1e-3, 0.1)
    different = np.array(a)
    different[-1] = not a[-1]
    assert measure_same([a], [different]) is None
    zeros = np.zeros_like(a)
    assert measure_same([zeros], [zeros]) is None  # no cosine
    if a.dtype.kind == "f":
        a[-1] = np.nan
        assert measure_same([a], [np.array(a)]) is None


# Which tensor belongs to which: by name, by a map of names, by order and shape


def records(*words: str) -> list[Record]:
    """``conv1:Conv2d:3x4``, ``conv1#2:Conv2d:3x4`` for a second call."""
    found = []
    for word in words:
        name, type_, shape = word.split(":")
        name, _, call = name.partition("#")
        lengths = tuple(map(int, shape.split("x")))
        number = int(call or 1)
        key = key_of(name, number, "output")
        found.append(
            Record(key, name, type_, number, "output", "output", lengths, "float32", "cpu")
        )
    return found


def matched(a: list[Record], b: list[Record], **prefixes: str) -> dict[str, tuple[str, str]]:
    found = match_records(a, b, prefixes)
    assert [pair[0] for pair in found.pairs] == [r for r in a if r not in found.only_a]
    return {one.module: (two.module, by) for one, two, by in found.pairs}


def test_names_come_first() -> None:
    a = records("one:Linear:2", "two:Linear:2", ".:Net:2")
    assert matched(a, a[::-1]) == {
        "one": ("one", "name"),
        "two": ("two", "name"),
        ".": (".", "name"),
    }


def test_a_map_changes_prefixes_at_dots_and_the_longest_counts() -> None:
    a = records("enc.a:Linear:2", "enc.b:Linear:2", "encoder:Linear:2")
    b = records("new.a:Linear:2", "other:Linear:2", "encoder:Linear:2")
    found = matched(a, b, **{"enc": "new", "enc.b": "other"})
    assert found == {
        "enc.a": ("new.a", "map"),
        "enc.b": ("other", "map"),
        "encoder": ("encoder", "name"),
    }


def test_a_map_from_and_to_nothing_adds_and_takes_a_prefix() -> None:
    bare, wrapped = records("a:Linear:2", ".:Net:2"), records("net.a:Linear:2", "net:Net:2")
    assert matched(bare, wrapped, **{"": "net"}) == {"a": ("net.a", "map"), ".": ("net", "map")}
    assert matched(wrapped, bare, net="") == {"net.a": ("a", "map"), "net": (".", "map")}


def test_order_type_and_shape_find_what_was_renamed() -> None:
    a = records("in:Linear:2", "old:Linear:3", "act:ReLU:3", "out:Linear:4")
    b = records("in:Linear:2", "new:Linear:3", "relu:ReLU:3", "out:Linear:4")
    found = matched(a, b)
    assert (found["old"], found["act"]) == (("new", "order"), ("relu", "order"))
    assert "old" not in matched(a, records("in:Linear:2", "new:Conv2d:3", "out:Linear:4"))
    assert "old" not in matched(a, records("in:Linear:2", "new:Linear:5", "out:Linear:4"))


def test_a_module_called_twice_finds_two_modules() -> None:
    a = records("one:Linear:2", "relu:ReLU:2", "two:Linear:2", "relu#2:ReLU:2")
    b = records("one:Linear:2", "relu1:ReLU:2", "two:Linear:2", "relu2:ReLU:2")
    found = match_records(a, b, {})
    assert [(x.key, y.key) for x, y, by in found.pairs if by == "order"] == [
        ("relu/output", "relu1/output"),
        ("relu:2/output", "relu2/output"),
    ]


def test_layers_in_other_places_are_no_partners() -> None:
    a = records("extra:Linear:2", "mid:Conv2d:2", "end:ReLU:2")
    b = records("mid:Conv2d:2", "late:Linear:2", "end:ReLU:2")
    found = match_records(a, b, {})
    assert [r.module for r in found.only_a] == ["extra"]
    assert [r.module for r in found.only_b] == ["late"]


def test_in_a_renamed_model_a_missing_layer_does_not_shift_the_others() -> None:
    a = records("a1:Linear:1", "a2:ReLU:2", "a3:Linear:3", "a4:Linear:4")
    b = records("b1:Linear:1", "b3:Linear:3", "b4:Linear:4")
    assert {one: two for one, (two, _) in matched(a, b).items()} == {
        "a1": "b1",
        "a3": "b3",
        "a4": "b4",
    }
