"""Pretrained weights come from the cache, and from the network only on request."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from torchvision import models

from hookscope import load_model as load
from hookscope.errors import ModelError, RequestError, WeightsError
from hookscope.sources import downloads
from tests.processes import run_python
from tests.refusals import refused
from tests.sources.test_weights import Evil

SQUEEZENET = models.SqueezeNet1_1_Weights.IMAGENET1K_V1
MOBILENET = models.MobileNet_V2_Weights.IMAGENET1K_V1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose only way out is a proxy that is not there."""
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def put(cache: Path, entry: object, state: object) -> Path:
    path = cache / Path(entry.url).name
    torch.save(state, path)
    return path


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("word", ["default", "DEFAULT", "IMAGENET1K_V1"])
def test_cached_weights_are_loaded_and_hashed(cache: Path, word: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        state = models.squeezenet1_1(weights=None).state_dict()
    path = put(cache, SQUEEZENET, state)
    loaded = load("squeezenet1_1", weights=word)
    assert all(torch.equal(value, state[key]) for key, value in loaded.module.state_dict().items())
    assert loaded.weights.name == "IMAGENET1K_V1"
    assert loaded.weights.blake3 == blake3(path.read_bytes()).hexdigest()


@pytest.mark.usefixtures("offline")
def test_the_chosen_weights_bring_their_own_recipe_and_are_those_of_a_quantized_name_too(
    cache: Path,
) -> None:
    state = models.mobilenet_v2(weights=None).state_dict()
    put(cache, MOBILENET, state)
    loaded = load("mobilenet_v2", weights="IMAGENET1K_V1")
    assert "IMAGENET1K_V1: shorter side to 256" in loaded.recipe
    assert "IMAGENET1K_V2: shorter side to 232" in load("mobilenet_v2", meta=True).recipe
    quantized = load("quantized_mobilenet_v2", weights="default").module
    assert torch.equal(quantized.classifier[1].weight, state["classifier.1.weight"])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("offline")
def test_the_chosen_weights_bring_their_own_size(cache: Path) -> None:
    state = models.vit_b_16(weights=None, image_size=384).state_dict()
    put(cache, models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1, state)
    loaded = load("vit_b_16", weights="IMAGENET1K_SWAG_E2E_V1")
    assert loaded.shape == (1, 3, 384, 384)
    assert "centre crop 384x384" in loaded.recipe


@pytest.mark.usefixtures("offline")
def test_arguments_that_the_weights_rule_out_are_blamed(cache: Path) -> None:
    put(cache, SQUEEZENET, {})
    with pytest.raises(ModelError, match="num_classes=7"):
        load("squeezenet1_1", weights="default", model_args={"num_classes": 7})


@pytest.mark.usefixtures("offline")
def test_weights_out_of_reach_are_asked_for_once_and_the_ways_round_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, urlopen = [], downloads.urlopen
    monkeypatch.setattr(downloads, "urlopen", lambda *a, **k: asked.append(a) or urlopen(*a, **k))
    with pytest.raises(WeightsError, match="reached") as caught:
        load("resnet18", weights="default")
    assert len(asked) == 1
    assert str(cache / "resnet18-f37072fd.pth") in caught.value.message
    for part in ("https://download.pytorch.org/models/resnet18-f37072fd.pth", "TORCH_HOME"):
        assert part in caught.value.hint
    assert 'weights="random"' in caught.value.hint
    assert not list(cache.iterdir())


@pytest.mark.usefixtures("offline")
def test_a_cached_file_that_is_cut_off_or_would_run_code_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(cache, SQUEEZENET, {"x": Evil()})
    with pytest.raises(WeightsError):
        load("squeezenet1_1", weights="default")
    assert not Path("ran").exists()
    put(cache, SQUEEZENET, {"x": torch.ones(9)})
    path.write_bytes(path.read_bytes()[:100])
    with refused(WeightsError, message=str(path), hint="Delete"):
        load("squeezenet1_1", weights="default")


def test_unknown_weights_are_answered_with_the_known_ones() -> None:
    with refused(RequestError, "'IMAGENET1K_V3'", hint="IMAGENET1K_V1, IMAGENET1K_V2"):
        load("resnet50", weights="IMAGENET1K_V3")


class Served(http.server.BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("right", [True, False])
def test_a_download_is_kept_only_if_its_hash_is_right(
    cache: Path, server: str, tmp_path: Path, right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "w.pth")
    Served.body = (tmp_path / "w.pth").read_bytes()
    digest = hashlib.sha256(Served.body).hexdigest()[:8] if right else "00000000"
    url = f"{server}/w-{digest}.pth"
    if right:
        assert Path(downloads.fetch(url)).read_bytes() == Served.body
    else:
        with pytest.raises(WeightsError, match="invalid hash value"):
            downloads.fetch(url)
        assert not list(cache.iterdir())
    assert capsys.readouterr().out == ""


def test_a_server_that_does_not_answer_is_given_up_soon(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.3)
    with socket.socket() as not_executed:
        not_executed.bind(("127.0.0.1", 0))
        not_executed.listen()
        url = f"http://127.0.0.1:{not_executed.getsockname()[1]}/w-00000000.pth"
        with pytest.raises(WeightsError, match=r"within|timed"):
            downloads.fetch(url)


def test_random_weights_ask_nobody(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('asked the network')\n"
        "sys.addaudithook(lambda e, a: refuse() if e in"
        " ('socket.connect', 'socket.getaddrinfo') else None)\n"
        "from hookscope import load_model as load\n"
        "load('fasterrcnn_mobilenet_v3_large_320_fpn')\n"
        "load('lraspp_mobilenet_v3_large')\n"
    )
    run_python("-c", code, status=0)
