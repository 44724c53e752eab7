"""What a notebook shows of each result: an escaped table, and a short text."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import hookscope
from hookscope.model_analysis.cams.overlay import draw_overlay
from hookscope.views.text.text_table import NOTEBOOK_ROWS
from tests.processes import run_python
from tests.views.text.samples import SAMPLES, captured

DIGITS = "sample_models/digits.py:trained"
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;", "esc\x1b[31m")


class Page(HTMLParser):
    """The tags, the attributes and the rows of cells of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data.rstrip("\n")


def cells(result: Any) -> list[list[str]]:
    return Page(result._repr_html_()).rows


def test_names_are_escaped_wherever_they_stand() -> None:
    capture = captured(
        {name: torch.ones(2) for name in HOSTILE},
        HOSTILE[0],
        model={"spec": HOSTILE[0], "weights": "random"},
        top=[[{"index": 1, "label": HOSTILE[1], "probability": 0.5}]],
    )
    html = capture._repr_html_()
    assert "<script" not in html and "<img" not in html and "\x1b" not in html
    assert [row[0] for row in cells(capture)[1:5]] == [*HOSTILE[:3], r"esc\x1b[31m"]


def test_a_long_table_is_cut() -> None:
    html = captured({f"m{i}": torch.ones(1) for i in range(NOTEBOOK_ROWS + 1)})._repr_html_()
    shown, summary, folded = html.partition("<details><summary>180 more rows</summary>")
    assert summary and folded.count("</details>") == 1
    assert (shown.count("<tr>"), folded.count("<tr>")) == (1 + 20, 1 + NOTEBOOK_ROWS - 20)
    assert shown.count("<th ") == folded.count("<th ") > 3
    assert "... and 1 more row." in html


def test_a_class_activation_map_is_a_picture(repo: Path, tmp_path: Path) -> None:
    shot = hookscope.cam(f"{repo}/{DIGITS}")
    html = shot._repr_html_()
    data = re.fullmatch(r'.*<img alt="cam" [^>]*base64,([^"]+)">.*', html, re.DOTALL)
    assert data is not None and html.index("<img") < html.index("<table")
    with Image.open(io.BytesIO(base64.b64decode(data[1]))) as picture:
        drawn = draw_overlay(shot)
        assert (picture.format, picture.size) == ("PNG", drawn.size)
        assert picture.convert("RGB").tobytes() == drawn.convert("RGB").tobytes()
    shot.save(tmp_path / "cam.safetensors")
    assert "<img" in hookscope.load(tmp_path / "cam.safetensors")._repr_html_()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> dict[str, Any]:
    """What each public function returns of one small model."""
    folder = tmp_path_factory.mktemp("notebook")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    x, file = {"input": torch.ones(2, 4)}, repo / "sample_models" / "five.safetensors"
    picture = str(repo / "sample_models" / "five.png")
    with hookscope.record(net) as recorded:
        net(x["input"])
    return {
        "ablate": hookscope.ablate(net, rank="output", **x),
        "cam": hookscope.cam(f"{repo}/{DIGITS}"),
        "capture": hookscope.capture(net, **x),
        "check": hookscope.check(net, **x),
        "diff": hookscope.diff(net, net, **x),
        "export": hookscope.export(file, folder / "a.npz"),
        "extract": hookscope.extract(
            f"{repo}/{DIGITS}", folder / "f", layers="fc", input=picture, workers=0
        ),
        "features": hookscope.load(repo / "sample_models" / "features"),
        "gradcheck": hookscope.gradcheck(net, shape=[(2, 4)]),
        "grads": hookscope.grads(net, loss="sum", **x),
        "attribute": hookscope.attribute(
            f"{repo}/sample_models/letters.py:Letters", input="text:hello", by="gradxinput"
        ),
        "load": hookscope.load(file),
        "record": recorded,
        "report": hookscope.report(file),
        "similar": hookscope.similar(repo / "sample_models" / "features"),
        "step": hookscope.step(net, loss="sum", **x),
        "top": hookscope.top(repo / "sample_models" / "features", layer="fc"),
        "trace": hookscope.trace(net, loss="sum", **x),
        "sweep": hookscope.sweep(net, metric="output", **x),
        "tree": hookscope.tree(net),
        "verify": hookscope.verify(repo / "sample_models" / "features"),
    }


def test_what_each_public_function_returns_is_a_table_and_a_short_text(
    results: dict[str, Any],
) -> None:
    for name, result in (results | {name: make() for name, make in SAMPLES.items()}).items():
        page = Page(result._repr_html_())
        assert set(page.tags) <= {
            *("div", "table", "thead", "tbody", "tr", "th", "td", "p", "details", "summary", "img")
        }
        assert page.attributes <= {"style"} or name == "cam"
        assert "p" in page.tags or "table" in page.tags, name
        assert len({len(row) for row in page.rows}) == 1 or page.tags.count("table") != 1
        assert len(repr(result)) < 300 and "\n" not in repr(result), name
        assert repr(result).startswith(f"<{type(result).__name__} "), name


def test_short_texts_name_the_model_and_what_was_found(results: dict[str, Any]) -> None:
    assert repr(results["capture"]) == "<Capture of 3 tensors of Sequential, 72 bytes>"
    assert repr(results["trace"]) == "<Trace of Sequential: 3 forward and 3 backward calls>"
    assert repr(results["diff"]) == "<Diff of 3 tensors: 0 differ>"
    assert repr(results["tree"]) == "<ModuleTree of Sequential: 3 modules, 15 parameters>"
    assert repr(results["gradcheck"]).endswith(": 0 of 138 derivatives differ>")
    assert repr(results["verify"]).endswith("features: intact, 10 rows in 3 shards>")


def test_a_drawing_is_a_png_and_a_loaded_model_one_line(repo: Path) -> None:
    pytest.importorskip("matplotlib")
    drawing = hookscope.plot(repo / "sample_models" / "five.safetensors", "conv1", count=4)
    assert drawing._repr_png_().startswith(b"\x89PNG\r\n")
    assert repr(drawing) == "<Drawing of maps: conv1/output (1x16x8x8): channels 0-3 of 16>"
    model = hookscope.load_model(f"{repo}/{DIGITS}")
    assert repr(model) == f"<LoadedModel {model.spec}: DigitsCNN, weights: {model.weights.name}>"


def test_views_are_imported_when_a_notebook_shows_a_result() -> None:
    for show, names in (("__repr__", set()), ("_repr_html_", {"rich", "hookscope.views.display"})):
        code = (
            "import sys\n"
            "from hookscope.results.health import Health\n"
            f"Health((), (), {{}}, {{}}, {{}}).{show}()\n"
            "print(*(m for m in sys.modules if m == 'rich' or m.startswith('hookscope.views')))"
        )
        found = set(run_python("-c", code, status=0).stdout.split())
        assert found >= names and bool(found) == bool(names)
