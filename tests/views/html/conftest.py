"""Captures for pages, and Chromium to open the pages; tests are skipped without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import hookscope
from hookscope.results.health import Finding
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.html.run_page import build_run_page
from hookscope.views.local_diff import local_diff_chart
from tests.run_folders import small_run
from tests.views.error_results import SCRIPT, local_diff

PATIENCE = 300_000  # milliseconds; what is waited for is a state, however busy the machine is
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Net(nn.Module):
    """Two stages, a layer that never runs, and a name that would be a script if it were let."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 20, 3, padding=1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(20, 6, 3, padding=1), nn.ReLU())
        self.add_module(SCRIPT, nn.Flatten())
        self.fc = nn.Linear(6 * 12 * 12, 5)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage2(self.stage1(x))
        return self.fc(self.get_submodule(SCRIPT)(x))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files: ``values``, ``other`` (of another seed), ``grads`` and ``odd`` (with NaN and Inf)."""
    made = tmp_path_factory.mktemp("captures")

    def net(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Net()

    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    what = ["input", "output"]
    hookscope.capture(net(0), input=x, what=what).save(made / "values.safetensors")
    other = hookscope.capture(net(1), input=x, what=what, layers=["*", "!fc"])
    other.save(made / "other.safetensors")
    hookscope.grads(net(0), input=x, loss="sum").save(made / "grads.safetensors")
    odd = net(0)
    with torch.no_grad():
        odd.stage2[0].bias[0], odd.stage2[0].bias[1] = torch.nan, torch.inf
    hookscope.capture(odd, input=x, what=what).save(made / "odd.safetensors")
    return made


@pytest.fixture(scope="session")
def pages(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], str]]:
    """What makes a page of each kind; in each there is a name that would be a script."""
    made = tmp_path_factory.mktemp("others")
    values, other, odd = (folder / f"{name}.safetensors" for name in ("values", "other", "odd"))
    runs = [small_run(made / (name * 60), (SCRIPT, "fc2")) for name in "ab"]
    tensors = {f"{SCRIPT}.x": np.array([0, 1, np.nan], np.float32), "fc.weight": np.ones((4, 3))}
    save_file(tensors, made / "w.safetensors", metadata={"config": SCRIPT})
    levels = ("error", "warning", "note")
    findings = tuple(Finding(x, x, "fc2", "It is.", 1, hint="Do.", others=("fc1",)) for x in levels)
    errors = local_diff([("stem", 0.0, 0.0), (SCRIPT, 2e-3, 5e-3), ("body", None, None)])
    return {
        "capture": lambda: hookscope.report(values).html,
        "pair": lambda: hookscope.report(values, other).html,
        "odd": lambda: hookscope.report(values, odd).html,
        "run": lambda: build_run_page([TrainingRun(runs[0])], findings).html(),
        "runs": lambda: hookscope.report(*runs).html,
        "weights": lambda: hookscope.report(made / "w.safetensors").html,
        "errors": lambda: local_diff_chart(errors).page(errors).html(),
    }


@pytest.fixture(scope="session")
def html(pages: dict[str, Callable[[], str]]) -> str:
    """The page of ``values``."""
    return pages["capture"]()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, as it is installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium is installed (Debian and Ubuntu: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def said() -> list[str]:
    """What pages have said on the console, raised, or asked for."""
    return []


@pytest.fixture
def opened(browser: Any, tmp_path: Path, said: list[str]) -> Iterator[Callable[..., Any]]:
    """Open a page from disk: ``opened(html, width=1280, dark=False)``.

    When the test ends there must have been no message on the console, no error and no request.
    """
    contexts: list[Any] = []

    def load(
        html: str, width: int = 1280, dark: bool = False, at: str = "", scripts: bool = True
    ) -> Any:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        scheme = "dark" if dark else "light"
        size = {"width": width, "height": 800}
        context = browser.new_context(
            viewport=size, color_scheme=scheme, java_script_enabled=scripts
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        address = file.as_uri()

        def judge(request: Any) -> None:
            if request.url.split("#")[0] != address and not request.url.startswith("data:"):
                said.append(request.url)

        page.on("request", judge)
        page.goto(address + at)
        return page

    yield load
    for context in contexts:
        context.close()
    assert said == []
