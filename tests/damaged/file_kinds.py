"""The kinds of files that are read: how a sound one is made, and what is read of it."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError, RequestError
from hookscope.stores.features.folder import shard_name
from tests.conftest import REPO
from tests.sources.torchscript.examples import quietly
from tests.stores.weights.saved_weights import FORMATS, State, save_gguf, save_set
from tests.stores.weights.saved_weights import state as small_state
from tests.zoo import Attention, Scriptable

SAMPLES = REPO / "sample_models"
DIGITS = f"{SAMPLES}/digits.py:trained"
FIVE = SAMPLES / "five.png"
X = torch.linspace(-1, 1, 2 * 4).reshape(2, 4)


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is read.

    ``write`` puts a sound one into an empty folder, with what belongs to it, and returns its path.
    ``read`` reads it, as a user would let it be read. ``lenient`` are the ways of damage after
    which it may be read each time: the file holds no more than text or numbers, or only a copy.
    ``named`` is what an error names, if it is neither the file nor its folder.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    lenient: Collection[str] = ()
    error: type[HookscopeError] = HookscopeError
    named: str | None = None
    cost: int = 1  # of these files, fewer are read
    exhaustive: bool = False


KINDS: dict[str, FileKind] = {}


def of_bytes(name: str, make: Callable[[], bytes]) -> Callable[[Path], Path]:
    """Write what ``make`` returns into a file of that name."""
    made = cache(make)

    def write(folder: Path) -> Path:
        (folder / name).write_bytes(made())
        return folder / name

    return write


def of_folder(name: str, sample: str, **added: str) -> Callable[[Path], Path]:
    """Copy a folder of ``sample_models``, with some more files; the one of that name is damaged."""

    def write(folder: Path) -> Path:
        shutil.copytree(SAMPLES / sample, folder / sample)
        for file, text in added.items():
            (folder / sample / file.replace("__", ".")).write_text(text)
        return folder / sample / name

    return write


# ---- weights -----------------------------------------------------------------------------------


def of_format(kind: str, state: Callable[[], State]) -> Callable[[Path], Path]:
    return lambda folder: FORMATS[kind](state(), folder)


def saved(save: Callable[..., object], value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    save(value, buffer, **options)
    return buffer.getvalue()


def gguf_of(folder: Path) -> Path:
    import gguf

    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quantize(np.ones((2, 64), np.float32), kind)
    values = {"plain": np.arange(6, dtype=np.float32).reshape(2, 3), "q": packed}
    return save_gguf(folder / "a.gguf", values, {"tokenizer.ggml.tokens": ["a", "b"]}, q=kind)


def read_weights(path: Path) -> None:
    """Read what ``tree --hash``, ``check`` and ``show`` read."""
    from hookscope.file_analysis.weight_findings import check_weights
    from hookscope.specs.command_options import WeightCheckOptions
    from hookscope.stores.weights.open_weights import is_weights, open_weights
    from hookscope.stores.weights.weight_tree import WeightTree, hash_weights

    is_weights(str(path))
    weights = open_weights(path)
    WeightTree.of(weights)
    if weights.nbytes < 1 << 20:  # a small file may have a gigabyte of views
        hash_weights(weights)
        check_weights(weights, WeightCheckOptions())
        for name in weights:
            weights.tensor(name)


def checkpoint() -> bytes:
    value = {"epoch": 3, "state_dict": small_state(), "array": np.ones(3), "optimizer": {"lr": 0.1}}
    return saved(torch.save, value)


@cache
def digits_state() -> State:
    return hookscope.load_model(DIGITS).module.state_dict()


def into_a_model(path: Path) -> None:
    hookscope.load_model(DIGITS, weights=path)


FILES = {"safetensors": "a.safetensors", "torch": "a.pth", "old torch": "old.pth"}
for kind, name in FILES.items():
    KINDS[name] = FileKind(of_format(kind, small_state), read_weights)
    KINDS[f"model/{name}"] = FileKind(of_format(kind, digits_state), into_a_model)
for kind, name in {
    "packed torch": "packed.pth",
    "npz": "a.npz",
    "packed npz": "packed.npz",
}.items():
    KINDS[name] = FileKind(of_format(kind, small_state), read_weights)
for name, make in {
    "checkpoint.pth": checkpoint,
    "module.pt": lambda: saved(torch.save, nn.Sequential(nn.Linear(3, 2))),
    "a.npy": lambda: saved(lambda value, file: np.save(file, value), np.arange(6.0)),
}.items():
    KINDS[name] = FileKind(of_bytes(name, make), read_weights)
KINDS["a.gguf"] = FileKind(gguf_of, read_weights)


def of_set(name: str) -> Callable[[Path], Path]:
    """Weights in two files with an index, of which the one of that name is damaged."""

    def write(folder: Path) -> Path:
        if "safetensors" in name:
            return save_set(digits_state(), folder / "set") / name
        keys = list(digits_state())
        parts = {"part-1.bin": keys[:3], "part-2.bin": keys[3:]}
        for part, held in parts.items():
            torch.save({key: digits_state()[key] for key in held}, folder / part)
        listed = {key: part for part, held in parts.items() for key in held}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}))
        return folder / name

    return write


for name in (
    *("model.safetensors.index.json", "model-00002-of-00002.safetensors"),
    *("pytorch_model.bin.index.json", "part-2.bin"),
):
    KINDS[name] = FileKind(of_set(name), lambda path: into_a_model(path.parent), cost=3)

# ---- models ------------------------------------------------------------------------------------


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()


def in_torchscript(make: Callable[[], Any]) -> bytes:
    with quietly():
        return saved(torch.jit.save, make())


def exported() -> bytes:
    program = torch.export.export(net(), (X,))
    return saved(lambda value, file: torch.export.save(value, file), program)


for name, make in {
    "scripted.pt": lambda: in_torchscript(lambda: torch.jit.script(net())),
    "traced.pt": lambda: in_torchscript(lambda: torch.jit.trace(net(), X)),
    "branching.pt": lambda: in_torchscript(lambda: torch.jit.script(Scriptable())),
    "exported.pt2": exported,
}.items():
    KINDS[name] = FileKind(of_bytes(name, make), hookscope.load_model, cost=2)


def two_layers() -> bytes:
    from tests.sources.onnx import handmade

    return handmade.two_layers().SerializeToString()


def onnx_functions() -> bytes:
    """A model of functions that call each other, and of an If with subgraphs."""
    from onnx import helper

    from tests.sources.onnx.handmade import FLOAT, model

    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]
    relu = [helper.make_node("Relu", ["a"], ["b"])]
    twice = [helper.make_node("F", [x], [y], domain="d") for x, y in ("ab", "bc")]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["h"], ["y"])],
            name,
            [],
            [helper.make_tensor_value_info("y", FLOAT, [2])],
        )
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("G", ["x"], ["h"], domain="d", name="/body/G"),
        helper.make_node("If", ["yes"], ["y"], name="/body/If", **branches),
    ]
    values = [("x", FLOAT, [2])], [("y", FLOAT, [2])], {"yes": np.array(True)}
    proto = model(nodes, *values, opset_imports=opsets)
    proto.functions.append(helper.make_function("d", "F", ["a"], ["b"], relu, opsets))
    proto.functions.append(helper.make_function("d", "G", ["a"], ["c"], twice, opsets))
    return proto.SerializeToString()


def with_external_data(folder: Path) -> Path:
    import onnx

    from tests.sources.onnx import handmade

    places = {"save_as_external_data": True, "location": "net.data", "size_threshold": 0}
    onnx.save_model(handmade.two_layers(), folder / "net.onnx", **places)
    return folder / "net.data"


def run_onnx(path: Path) -> None:
    hookscope.capture(path.with_suffix(".onnx"), input=torch.ones(2, 3))


KINDS["net.onnx"] = FileKind(of_bytes("net.onnx", two_layers), run_onnx)
KINDS["functions.onnx"] = FileKind(of_bytes("functions.onnx", onnx_functions), hookscope.tree)
KINDS["net.data"] = FileKind(with_external_data, run_onnx, lenient={"changed", "counts"})


def run_transformers(path: Path) -> None:
    text = "text:The capital of France is"
    hookscope.capture(f"hf:{path.parent}", weights="default", input=text, layers="lm_head")


CONFIGURED = ("json",)  # most values of a configuration may be others
for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
    KINDS[f"capitals/{name}"] = FileKind(
        of_folder(name, "capitals"), run_transformers, named="", cost=8, lenient=CONFIGURED
    )

# ---- results -----------------------------------------------------------------------------------


def complex_capture() -> hookscope.Capture:
    return hookscope.capture(nn.Identity(), input=torch.ones(3, 2, dtype=torch.complex128) * 1j)


RESULTS: dict[str, Callable[[], hookscope.Capture]] = {
    "edited": lambda: hookscope.capture(
        DIGITS, input=FIVE, what=["input", "output"], edits="conv1=scale:0.5", compare=True
    ),
    "attention": lambda: hookscope.capture(
        Attention().eval(), input=torch.ones(2, 3, 4), attention=True
    ),
    "grads": lambda: hookscope.grads(
        DIGITS, input=FIVE, grad_edits="conv1=scale:0.5", compare=True
    ),
    "penalty": lambda: hookscope.grads(DIGITS, input=FIVE, penalty="gp"),
    "step": lambda: hookscope.step(DIGITS, input=FIVE),
    "cam": lambda: hookscope.cam(DIGITS, input=FIVE),
    "complex": complex_capture,
}


def of_result(name: str) -> Callable[[Path], Path]:
    made = cache(RESULTS[name])

    def write(folder: Path) -> Path:
        made().save(folder / "whole")
        return Path(shutil.copy(folder / "whole", folder / "a.safetensors"))

    return write


def show(path: Path) -> None:
    from hookscope.files import strict_json
    from hookscope.stores.capture_file import open_capture
    from hookscope.views import display
    from hookscope.views.images.tensor_view import read_tensor_view
    from hookscope.views.stored_tensors import provenance_lines, show_document
    from hookscope.views.text.text_table import PIPE, TextOptions

    capture = open_capture(path)
    display.text(capture, TextOptions(80))
    display.text(capture, PIPE)
    provenance_lines(capture, TextOptions(80))
    strict_json.dumps(show_document(capture, str(path)))
    for record in capture.records[:3]:
        display.text(read_tensor_view(capture, record.key), TextOptions(80))


def maps(path: Path) -> None:
    from hookscope.stores.capture_file import open_capture
    from hookscope.views.images.feature_maps import read_feature_maps
    from hookscope.views.text.terminal_maps import map_lines

    capture = open_capture(path)
    for record in capture.records[:2]:
        map_lines(read_feature_maps(capture, record.key), (80, 24), False, False, False)


def report(path: Path) -> None:
    for others in ((), (path.with_name("whole"),)):
        hookscope.report(path, *others).save(path.with_suffix(".html"))


def patch(path: Path) -> None:
    hookscope.capture(DIGITS, input=FIVE, layers="fc", edits=f"conv1=patch:{path}")


READERS: dict[str, Callable[[Path], object]] = {
    "load": hookscope.load,
    "show": show,
    "maps": maps,
    "report": report,
    "diff": lambda path: hookscope.diff(path.with_name("whole"), path),
    "patch": patch,
    "plot": lambda path: hookscope.plot(path).save(path.with_suffix(".png")),
}
for made in RESULTS:
    for reader, read in READERS.items():
        if made == "edited" or reader in ("load", "show", "report", "diff"):
            KINDS[f"{made}, {reader}"] = FileKind(
                of_result(made),
                read,
                cost=6 if reader in ("report", "plot") else 2,
                exhaustive=reader == "plot" or (made != "edited" and reader != "show"),
            )


def read_features(path: Path) -> None:
    folder = path.parent
    np.asarray(hookscope.load(folder)["fc"][:])
    hookscope.top(folder, layer="fc", count=1)
    verified = hookscope.verify(folder)
    if not verified.ok:  # which has the damages as its result
        raise RequestError(" ".join(damage.file for damage in verified.damages))


for name in ("manifest.json", "inputs.jsonl", shard_name(4), "features.safetensors.index.json"):
    KINDS[f"features/{name}"] = FileKind(of_folder(name, "features"), read_features)


def read_run(path: Path) -> None:
    from hookscope.views import display
    from hookscope.views.text.text_table import PIPE

    display.text(hookscope.load(path.parent), PIPE)
    display.text(hookscope.check(path.parent), PIPE)
    hookscope.diff(SAMPLES / "run", path.parent)


EVENT = json.dumps([5, "nan", "forward", "DigitsCNN", "conv1", 1, "NaN in conv1.", ""])
for name in (
    *("run.json", "series.jsonl", "events.jsonl"),
    *("steps-000000000-000000039.safetensors", "layers-000000000-000000006.safetensors"),
):
    KINDS[f"run/{name}"] = FileKind(
        of_folder(name, "run", events__jsonl=f"{EVENT}\n"),
        read_run,
        lenient={"cut", "json", "other"} if name == "events.jsonl" else (),
        cost=3,
    )


def of_sample(name: str) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copy(SAMPLES / name, folder))


KINDS["digits.fp, beside one"] = FileKind(
    of_sample("digits.fp"), lambda path: hookscope.diff(SAMPLES / "digits.fp", path)
)
KINDS["digits.fp, beside a model"] = FileKind(
    of_sample("digits.fp"), lambda path: hookscope.diff(DIGITS, path, input=FIVE), cost=2
)


def ablated(path: Path) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    options: dict[str, Any] = {"channels": True, "rank": "output", "file": path}
    return hookscope.ablate(net, input=torch.ones(1, 8), **options)


def unfinished(folder: Path) -> Path:
    path = folder / "a.json"
    ablated(path)
    content = json.loads(path.read_bytes())
    path.write_text(
        json.dumps(content | {"ablations": content["ablations"][:9], "finished": False})
    )
    return path


def resume(path: Path) -> None:
    """What of the file is no part of the same runs is computed again."""
    assert len(ablated(path).ablations) == 19


WAYS = ("cut", "changed", "counts", "other", "json", "records")
KINDS["ablation to resume"] = FileKind(unfinished, resume, lenient=WAYS, cost=12)

# ---- settings and others -----------------------------------------------------------------------

SETTINGS = """device = "cpu"
seed = 3

[capture]
layer = ["layer3.*", "fc"]
depth = 2
verify = true
shape = "1x3x64x64"

[grads]
loss = "ce"
"""


def read_settings(path: Path) -> None:
    from hookscope.cli.console import Console
    from hookscope.cli.main import cli

    words = ["--config", str(path)] if path.name == "other.toml" else []
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with cli.make_context("hookscope", ["config", *words], obj=Console()) as context:
            cli.invoke(context)
    except click.ClickException as error:
        assert error.exit_code == 2
        raise RequestError(" ".join(error.format_message().split())) from error
    except click.exceptions.Exit as end:
        assert end.exit_code == 0
    finally:
        os.chdir(before)


def of_settings(name: str, text: str = SETTINGS) -> Callable[[Path], Path]:
    return of_bytes(name, text.encode)


OF_PROJECT = SETTINGS.replace("[", "[tool.hookscope.").replace('[tool.hookscope."', '["')
for name, text in {
    "hookscope.toml": SETTINGS,
    "other.toml": SETTINGS,
    "pyproject.toml": f"[tool.hookscope]\n{OF_PROJECT}",
}.items():
    KINDS[name] = FileKind(of_settings(name, text), read_settings, lenient={"cut"}, cost=2)


def read_rules(path: Path) -> object:
    from hookscope.stores import dump

    return dump.read_rules(str(path))


def read_dump(path: Path) -> None:
    from hookscope.stores.dump import open_dump

    content = open_dump(str(path.parent))
    for name in content:
        content.tensor(name)


RULES = '"blk.{n}.attn" = "layers.{n}.attn"\n"out" = "head"\n'
KINDS["rules.toml"] = FileKind(of_settings("rules.toml", RULES), read_rules, named="")
KINDS["dump/a.npz"] = FileKind(of_format("npz", small_state), read_dump)


def stored_tree(folder: Path) -> Path:
    from hookscope.results.module_tree import ModuleTree
    from hookscope.stores.tree_cache import StoredTree, write_tree

    tree = hookscope.tree(net())
    assert isinstance(tree, ModuleTree)
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        write_tree("k" * 64, StoredTree(tree, ()))
    [path] = (folder / "hookscope" / "trees").iterdir()
    return path


def read_tree(path: Path) -> None:
    from hookscope.stores import tree_cache

    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(path.parents[2])):
        found = tree_cache.read_tree("k" * 64)
    if found is None:
        raise RequestError(f"{path.name} is damaged.")
    assert found.tree.total.parameters == 15


KINDS["stored tree"] = FileKind(stored_tree, read_tree)


def read_request(path: Path) -> None:
    from hookscope.stores.runs.live_socket import LiveRequest

    LiveRequest.read(path.read_bytes())


def request_of_a_command() -> bytes:
    from hookscope.specs.program_options import ProgramOptions
    from hookscope.stores.runs.live_socket import LiveRequest

    return LiveRequest(ProgramOptions("capture"), ("fc",), "answer").to_bytes()


KINDS["request.json"] = FileKind(
    of_bytes("request.json", request_of_a_command), read_request, named=""
)
