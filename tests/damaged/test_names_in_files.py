"""What files of data name: no code runs, and no address, device or file elsewhere is opened."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import HookscopeError, InputError, ModelError, ResultsFileError
from hookscope.stores.runs.rank_runs import open_run
from hookscope.stores.runs.run_list import RunList
from hookscope.views import display
from hookscope.views.text.text_table import PIPE
from hookscope.views.top_inputs import top_sheet
from tests.conftest import REPO

SAMPLES = REPO / "sample_models"
MODEL = f"{SAMPLES}/digits.py:trained"
EVIL = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
def make():
    import torch
    return torch.zeros(1, 1, 8, 8)
"""
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes")
pytestmark = needs_links

opened: list[str] = []
_listens = False


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listens:
        return
    if event == "open" and "w" not in str(arguments[1]):
        opened.append(str(arguments[0]))
    elif event in ("socket.connect", "socket.getaddrinfo"):
        opened.append(f"socket {arguments}")


sys.addaudithook(_note)  # it cannot be removed


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files that data may name, beside files that it may not."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    array = np.zeros((1, 1, 8, 8), np.float32)
    np.save("inside.npy", array)
    np.save(tmp_path / "keepout.npy", array)
    os.symlink(tmp_path / "keepout.npy", "link.npy")
    os.mkfifo("fifo.npy")
    Path("evil.py").write_text(EVIL)
    global _listens
    opened.clear()
    _listens = True
    yield here
    _listens = False
    wrong = ("socket ", "keepout", "fifo", "/dev/zero", "link.")
    assert [path for path in opened if any(word in path for word in wrong)] == []
    assert not Path("ran").exists()


ELSEWHERE = (
    *("/dev/zero", "fifo.npy", "link.npy", "../keepout.npy", "~/keepout.npy", "./../keepout.npy"),
    *("s3://bucket/a.npy", "http://127.0.0.1:9/a.npy", "file:///tmp/keepout.npy"),
)
CODE = ("evil.py:make", "evil.py", "x=evil.py:make", "0=evil.py:make", "evil:make")
OTHERS = (
    *("lines:../keepout.npy", "lines:../keepout.npy:1", "../*.npy", "*.npy", "-", "@list.txt"),
    *("hub:imdb:train", "\0", "\ud800"),
)


def write_fingerprint(line: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    lines = (SAMPLES / "digits.fp").read_text().splitlines()
    lines = [f"# {line}: {text}" if one.startswith(f"# {line}:") else one for one in lines]
    Path("net.fp").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("input", [name]) for name in (*ELSEWHERE, *CODE, *OTHERS)),
        *(("weights", name) for name in ELSEWHERE),
        *(("tokenizer", name) for name in ELSEWHERE),
        *(("adapter", name) for name in ELSEWHERE),
        ("method", "make"),
        ("model_args", {"path": "../keepout.npy"}),
        ("model_args", {"parts": ["evil:make"]}),
    ],
)
def test_a_fingerprint_is_refused_with_the_option_that_gives_what_it_names(
    option: str, value: Any
) -> None:
    write_fingerprint("options", {option: value})
    with pytest.raises(ResultsFileError) as caught:
        hookscope.diff(MODEL, "net.fp")
    typed = {"model_args": "model-arg"}.get(option, option)
    assert caught.value.message.startswith(f"net.fp sets {typed} = ")
    assert option in str(caught.value.hint)  # Python's name for it


@pytest.mark.parametrize("name", ["inside.npy", "random:1x1x8x8", f"{SAMPLES}/five.png"])
def test_a_fingerprint_takes_an_input_of_its_folder_and_any_that_the_user_gives(
    name: str, tmp_path: Path
) -> None:
    hookscope.fingerprint(MODEL, input=name).save("net.fp")
    if name.startswith("/"):
        assert hookscope.diff(MODEL, "net.fp", input=name).same
        shutil.copy(name, "five.png")
        hookscope.fingerprint(MODEL, input="five.png").save("net.fp")
    assert hookscope.diff(MODEL, "net.fp").same


def test_numbers_are_taken_as_arguments_of_the_model() -> None:
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self, width: int = 3):\n        super().__init__(4, width)\n"
    )
    typed: Any = ["width=2"]  # as the command line gives it
    made = hookscope.fingerprint("net.py:Net", model_args=typed, shape=[1, 4])
    made.save("net.fp")
    assert hookscope.diff("net.py:Net", "net.fp").same


@pytest.mark.parametrize(
    "options",
    [
        *({"shape": shape} for shape in ("x", [1.5], [-1], [0], [True], [10**12], [10**30])),
        *({"seed": seed} for seed in ("1", 1.5, -1, 10**400, None)),
        *({"input": specs} for specs in ("evil.py:make", [5], [["evil.py:make"]], {"a": 1})),
        *({"input": [spec]} for spec in ("random:1000000000000", "random:1x1x9999999999x99999999")),
        *({"size": size, "input": ["inside.npy"]} for size in ([1, 2, 3], 10**12, "9" * 5000)),
        *({"dtype": "nn"}, {"device": "/dev/zero"}, {"device": "meta"}, {"rename": {"a": 1}}),
        *({"train": "yes"}, {"layers": 3}, {"weights": 5}, {"mean": ["a"]}, {"strict": []}),
        *({"model_args": [1]}, {"preprocess": "evil.py"}, [], [1], 5, "x"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_absurd_options_of_a_fingerprint_are_refused_in_a_sentence(options: Any) -> None:
    write_fingerprint("options", json.dumps(options))
    if not isinstance(options, dict):  # as if there were none
        write_fingerprint("options", "5" if isinstance(options, int) else json.dumps(options))
        hookscope.diff(MODEL, "net.fp")
        return
    with pytest.raises(HookscopeError) as caught:
        hookscope.diff(MODEL, "net.fp")
    assert caught.value.exit_code == 2 and "bug" not in str(caught.value)


@pytest.mark.parametrize("name", [*ELSEWHERE, *CODE, "../*.npy", "-"])
def test_a_json_input_names_tensors_of_its_folder_alone(name: str) -> None:
    Path("args.json").write_text(json.dumps([{"file": name}]))
    with pytest.raises(InputError, match=r"args\.json"):
        hookscope.capture(MODEL, input="args.json")


@pytest.fixture
def features(place: Path) -> Path:
    shutil.copytree(SAMPLES / "features", "features")
    return place / "features"


def rewrite_inputs(features: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    table = features / "inputs.jsonl"
    lines = [change(json.loads(line)) for line in table.read_text().splitlines()]
    table.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_picture_is_read_beside_the_features_or_where_the_user_says(
    features: Path, name: str
) -> None:
    digest = hashlib.sha256(Path("inside.npy").read_bytes()).hexdigest()
    rewrite_inputs(features, lambda line: {**line, "path": name, "sha256": digest})
    sheet = top_sheet(hookscope.top("features", layer="fc", count=1), 96)
    assert any("not beside" in label.text for label in sheet.labels)
    hookscope.plot("features", "fc").save("points.html")


def test_pictures_beside_the_features_and_named_ones_are_shown(
    features: Path, tmp_path: Path
) -> None:
    from hookscope.views.images.input_pictures import small_image

    images = tmp_path / "images"
    shutil.copytree(SAMPLES / "digits", images)
    line = json.loads((features / "inputs.jsonl").read_text().splitlines()[0])
    name = str(images / Path(line["path"]).name)
    for given, shown in (((), False), ((images,), True), ((name,), True), ((features,), False)):
        places = hookscope.top("features", layer="fc", count=1, input=given).places
        pixels = small_image(name, line["sha256"], 8, places)
        assert isinstance(pixels, np.ndarray) == shown
    shutil.move(images, "images")
    places = hookscope.top("features", layer="fc", count=1).places
    moved = f"images/{Path(name).name}"
    assert isinstance(small_image(moved, line["sha256"], 8, places), np.ndarray)
    assert isinstance(small_image(moved, None, 8, places), str)  # of unknown content


@pytest.mark.parametrize(
    "spec", ["../keepout.jsonl", "~/keepout.jsonl", "link.jsonl", "../*.jsonl", "s3://b/a.parquet"]
)
def test_a_text_is_read_beside_the_features_or_where_the_user_says(
    tmp_path: Path, spec: str
) -> None:
    from hookscope.inputs.text_formats import StoredTexts

    keepout = tmp_path / "keepout.jsonl"
    keepout.write_text('{"text": "a"}\n')
    os.symlink(keepout, "link.jsonl")
    path = spec.replace("~", str(tmp_path)).replace("*", "keepout")
    texts = StoredTexts([spec], ["."])
    assert texts.read(f"{path}:1", None) is None
    [note] = texts.notes()
    assert "--input" in note


@pytest.mark.parametrize("name", [*ELSEWHERE[:4], f"../{SAMPLES.name}"])
def test_no_file_of_a_run_or_of_features_leads_elsewhere(place: Path, name: str) -> None:
    def read_run() -> None:
        run = hookscope.load("run")
        display.text(run, PIPE)
        hookscope.report("run")

    def read_features() -> None:
        hookscope.top("features", layer="fc", count=1)

    for kind, read in (("run", read_run), ("features", read_features)):
        shutil.copytree(SAMPLES / kind, kind)
        read()
        for file in sorted(Path(kind).iterdir()):
            if file.is_dir() or "index" in file.name:  # which these do not read
                continue
            content = file.read_bytes()
            file.unlink()
            os.symlink(Path(name).expanduser().absolute(), file)
            with pytest.raises(HookscopeError) as caught:
                read()
            assert caught.value.exit_code in (1, 2)
            file.unlink()
            file.write_bytes(content)


def test_a_run_that_a_link_puts_into_a_folder_of_runs_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "run", "runs/one")
    os.symlink("one", "runs/latest")
    assert len(RunList.of("runs").runs) == 2
    shutil.copytree(SAMPLES / "run", tmp_path / "elsewhere")
    for link, read in (("runs/other", RunList.of), ("runs/one/rank0", open_run)):
        os.symlink(tmp_path / "elsewhere", link)
        with pytest.raises(ResultsFileError, match=f"{link} leads out of"):
            read(os.path.dirname(link))
        os.unlink(link)


def test_a_dataset_folder_names_its_own_files(place: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from hookscope.files.text_sources import DATASET, TextSource
    from hookscope.inputs.text_formats import open_texts

    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk("texts")
    source = TextSource("texts", DATASET)
    assert open_texts(source).read(0).text == "a"
    state = Path("texts/state.json")
    for name in ("../fifo.npy", "/dev/zero", "../../keepout.npy", "s3://b/a.arrow"):
        content = json.loads(state.read_text())
        state.write_text(json.dumps({**content, "_data_files": [{"filename": name}]}))
        with pytest.raises(InputError, match=r"state\.json"):
            open_texts(source)


def test_an_image_of_a_data_set_is_a_file_of_its_own(place: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from hookscope.files.hub_source import HubSource
    from hookscope.inputs.hub_stream import _image_bytes

    del datasets
    shutil.copy(SAMPLES / "five.png", "five.png")
    folder, hub = (HubSource("hub:x:train", name, None, "train", None) for name in (".", "a/b"))
    assert _image_bytes({"bytes": None, "path": str(place / "five.png")}, "x", folder)
    for name in (
        *ELSEWHERE,
        "zip://a.png::../keepout.npy",
        "zip://a.png::http://127.0.0.1:9/a.zip",
    ):
        for source in (folder, hub):
            with pytest.raises(InputError, match="names the file"):
                _image_bytes({"bytes": None, "path": name}, "x", source)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"attn_implementation": "evil/kernel"}),
        ("config.json", {"_attn_implementation": {"": "evil/kernel"}}),
        ("config.json", {"attn_implementation": "flash_attention_2"}),
        ("config.json", {"backbone_config": {"backbone": "hf-hub:evil/net"}}),
        ("config.json", {"backbone": "local-dir:/tmp"}),
        ("config.json", {"model_args": {"checkpoint_path": "../keepout.npy"}}),
        ("adapter_config.json", {"megatron_config": {"a": 1}, "megatron_core": "evil"}),
        ("adapter_config.json", {"peft_type": "XLORA", "adapters": {"a": "../keepout"}}),
        ("tokenizer_config.json", {"vocab_file": "../keepout.npy"}),
        ("tokenizer_config.json", {"init_inputs": ["../keepout.npy"]}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../keepout.npy"]}),
    ],
)
def test_a_folder_of_transformers_names_no_code_and_no_file_elsewhere(
    file: str, content: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    shutil.copytree(SAMPLES / "capitals", "net")
    path = Path("net", file)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **content}))
    with pytest.raises(ModelError) as caught:
        hookscope.capture("hf:net", weights="default", input="text:The capital of France is")
    assert f"{path} sets " in caught.value.message


def test_a_tokenizer_may_say_where_it_was_made() -> None:
    pytest.importorskip("transformers")
    shutil.copytree(SAMPLES / "capitals", "net")
    path = Path("net/tokenizer_config.json")
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "tokenizer_file": "/home/nobody/.cache/tokenizer.json"}))
    assert hookscope.capture("hf:net", weights="default", input="text:The capital of France is")
