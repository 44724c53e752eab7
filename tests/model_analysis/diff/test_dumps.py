"""``hookscope diff MODEL DUMP``: what another program wrote, found by names and by rules.

The dumps are made with hooks written here, and with numpy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError
from hookscope.results.diff_result import Diff
from hookscope.stores.dump import is_dump
from tests import tiny_language
from tests.oracle.by_hand import outputs
from tests.zoo import Module

SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
IDS = torch.tensor([[3, 1, 4, 1, 5]])
Arrays = dict[str, np.ndarray]


def attention() -> Module:
    """One head of attention with three projections; returns its output and the weights."""

    def forward(self: Module, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        return weights @ self.v(x), weights

    return Module(forward, **{name: nn.Linear(6, 6) for name in "qkv"})


def block() -> Module:
    """Attention and a linear layer, each with a residual."""

    def forward(self: Module, x: Tensor) -> Tensor:
        middle = x + self.attn(x)[0]
        return middle + self.mlp(middle)

    return Module(forward, attn=attention(), mlp=nn.Linear(6, 6))


class Net(nn.Module):
    """An embedding, two blocks, and a head that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(6, 6)

    def forward(self, input_ids: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        if scale is not None:
            x = x * scale
        for block in self.blocks:
            x = block(x)
        return self.head(self.head(x))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def arrays() -> Arrays:
    """The input and what some layers of the net return, under their names."""
    found = outputs(net(), IDS)
    keys = ("embed/output", "blocks.0.attn/output.0", "blocks.0/output", "blocks.1.mlp/output")
    named = {key.partition("/")[0]: found[key].numpy() for key in keys}
    return {"input_ids": IDS.numpy(), **named}


def write(path: Path, arrays: Arrays) -> Path:
    """Write arrays as the suffix of the path says; a folder has one file for each."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, path)
    elif path.suffix in (".pt", ".pth"):
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    return path


def rules(folder: Path, *lines: str) -> str:
    path = folder / "map.toml"
    path.write_text("\n".join(lines))
    return str(path)


def compared(a: Any, dump: Path, **options: Any) -> Diff:
    found = hookscope.diff(a, dump, **options)
    assert isinstance(found, Diff)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["dump", "d.npz", "d.safetensors", "d.pt", "d.pth"])
def test_a_fault_is_found_at_its_layer_in_every_format(tmp_path, arrays, name) -> None:
    dump = write(tmp_path / name, arrays)
    found = compared(net(), dump)
    assert found.same and found.b == {"file": str(dump)}
    assert [(row.key, row.other, row.by) for row in found.rows] == [
        ("embed/output", "embed", "name"),
        ("blocks.0.attn/output.0", "blocks.0.attn", "name"),
        ("blocks.0/output", "blocks.0", "name"),
        ("blocks.1.mlp/output", "blocks.1.mlp", "name"),
    ]
    assert (found.only_a, found.only_b) == ((), ())
    arrays["blocks.0"] = arrays["blocks.0"] + np.float32(0.01)
    dump = write(tmp_path / f"fault{dump.suffix}", arrays)
    found = compared(net(), dump)
    assert found.first is not None and found.first.key == "blocks.0/output"
    assert found.counts["differs"] == 1
    assert compared(net(), dump, layers="embed").same


def test_files_with_several_tensors_and_bare_tensors(tmp_path, arrays) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    embed, attn = (torch.from_numpy(arrays[name]) for name in ("embed", "blocks.0.attn"))
    torch.save((attn, attn.mT), folder / "blocks.0.attn.pt")
    torch.save(embed, folder / "embed.pt")
    np.savez(folder / "input_ids.npz", arrays["input_ids"])
    (folder / "notes.txt").write_text("not read")
    found = compared(net(), folder)
    others = {row.key: row.other for row in found.rows}
    assert others == {
        "embed/output": "embed",
        "blocks.0.attn/output.0": "blocks.0.attn/0",
        "blocks.0.attn/output.1": "blocks.0.attn/1",
    }
    assert [row.verdict for row in found.rows] == ["equal", "equal", "differs"]
    single = tmp_path / "embed.pt"
    torch.save(embed, single)
    assert [row.other for row in compared(net(), single, input=IDS).rows] == ["embed"]


# Of each spelling of a name in a dump: the key of the tensor that it names.
SPELLINGS = {
    **dict.fromkeys(("embed/output", "embed_output", "embed.output"), "embed/output"),
    **dict.fromkeys(("embed_outputs", "Net.embed_outputs"), "embed/output"),
    **dict.fromkeys(("head:2", "head:2/output"), "head:2/output"),
    **dict.fromkeys(("output", "./output", "Net"), "./output"),
    "blocks.0.attn.0": "blocks.0.attn/output.0",
    **dict.fromkeys(("blocks.0.attn_1", "blocks.0.attn/output/1"), "blocks.0.attn/output.1"),
    "blocks.0.attn_output_1": "blocks.0.attn/output.1",
    "blocks.0": "blocks.0/output",
    **dict.fromkeys(("head/input.0", "Net.head_inputs_args_0"), "head/input.0"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_names_of_modules_in_other_spellings(tmp_path, name) -> None:
    dump = write(tmp_path / "d.npz", {name: np.zeros(3, np.float32)})
    [row] = compared(net(), dump, input=IDS).rows
    assert (row.key, row.other, row.by) == (SPELLINGS[name], name, "name")
    assert row.reason.startswith("shape ")


def test_a_module_wins_over_the_output_of_another_one(tmp_path) -> None:
    """``one.0`` is the module, not the first output of ``one``."""
    pair = Module(lambda self, x: (x * 2, self.get_submodule("0")(x)), **{"0": nn.Softmax(-1)})
    model, x = Module(lambda self, x: sum(self.one(x)), one=pair), torch.ones(3, 2)
    inner = outputs(model, x)["one.0/output"].numpy()
    dump = write(tmp_path / "d.npz", {"input": x.numpy(), "one.0": inner})
    [row] = compared(model, dump, input=x).rows
    assert (row.key, row.verdict) == ("one.0/output", "equal")


def test_rules_with_places_slices_sums_and_orders(tmp_path) -> None:
    found = outputs(net(), IDS)
    dump: Arrays = {"input_ids": IDS.numpy()}
    before = found["embed/output"]
    for n in range(2):
        of_block = {name: found[f"blocks.{n}.attn.{name}/output"] for name in "qkv"}
        dump[f"blk_{n}_qkv"] = torch.cat(list(of_block.values()), -1).numpy()
        attention = found[f"blocks.{n}.attn/output.0"]
        dump[f"blk_{n}_attn"] = np.ascontiguousarray(attention.permute(2, 0, 1).numpy())
        dump[f"blk_{n}_mlp"] = np.ascontiguousarray(found[f"blocks.{n}.mlp/output"].mT.numpy())
        dump[f"blk_{n}_middle"] = (before + attention).numpy()
        before = found[f"blocks.{n}/output"]
    folder = write(tmp_path / "dump", dump)
    file = rules(
        tmp_path,
        '"blk_{n}_qkv[..., :6]" = "blocks.{n}.attn.q"',
        '"blk_{n}_qkv[..., 6:12]" = "blocks.{n}.attn.k"',
        '"blk_{n}_qkv[..., 12:]" = "blocks.{n}.attn.v/output"',
        '"blk_{n}_attn.permute(1, 2, 0)" = "blocks.{n}.attn"',
        '"blk_{n}_mlp.T" = "blocks.{n}.mlp"',
        '"blk_{n}_middle + blk_{n}_mlp.T" = "blocks.{n}"',
    )
    whole = compared(net(), folder, map=file, strict=True)
    assert whole.same and len(whole.rows) == 12 and not whole.only_b
    others = {row.key: (row.other, row.by) for row in whole.rows}
    assert others["blocks.1.attn.k/output"] == ("blk_1_qkv[..., 6:12]", "map")
    assert others["blocks.0/output"] == ("blk_0_middle + blk_0_mlp.T", "map")

    dump["blk_1_qkv"] = dump["blk_1_qkv"].copy()
    dump["blk_1_qkv"][0, 2, 7] += 1  # an entry of k
    np.save(folder / "blk_1_qkv.npy", dump["blk_1_qkv"])
    rows = compared(net(), folder, map=Path(file)).rows
    [wrong] = [row for row in rows if row.verdict == "differs"]
    assert (wrong.key, wrong.figures.beyond) == ("blocks.1.attn.k/output", 1)
    assert wrong.figures.max_abs == pytest.approx(1)


def test_prefixes_of_names_and_tensors_without_a_module(tmp_path, arrays) -> None:
    renamed = {name.replace("blocks", "model.layers"): array for name, array in arrays.items()}
    dump = write(tmp_path / "d.npz", {**renamed, "extra": np.zeros(2)})
    found = compared(net(), dump, map="blocks=model.layers")
    assert [row.by for row in found.rows] == ["name", "map", "map", "map"]
    assert [tensor.key for tensor in found.only_b] == ["extra"]
    assert found.same
    assert not compared(net(), dump, map={"blocks": "model.layers"}, strict=True).same
    assert compared(net(), dump, layers="embed", strict=True).same


def test_a_capture_is_compared_by_names_and_rules(tmp_path, arrays) -> None:
    capture = tmp_path / "a.safetensors"
    hookscope.capture(net(), input=IDS).save(capture)
    dump = write(tmp_path / "d", arrays)
    found = compared(capture, dump, what="output")
    assert (found.same, len(found.rows), len(found.only_b)) == (True, 4, 0)
    file = rules(tmp_path, '"embed[..., ::2]" = "blocks.0"')
    row = next(row for row in compared(capture, dump, map=file).rows if row.by == "map")
    assert (row.key, row.other) == ("blocks.0/output", "embed[..., ::2]")
    assert row.shapes == ((1, 5, 6), (1, 5, 3))


def test_the_input_is_that_of_the_dump_or_the_given_one(tmp_path, arrays) -> None:
    scaled = outputs(net(), IDS, scale=torch.tensor(3.0))["blocks.1/output"].numpy()
    own = {"input_ids": IDS[0].numpy(), "scale": np.array(3.0, np.float32), "blocks.1": scaled}
    dump = write(tmp_path / "d.npz", own)
    found = compared(net(), dump)
    assert found.same and not found.only_b
    assert [entry["spec"] for entry in found.a["inputs"]] == [f"{dump}: input_ids, scale"] * 2
    assert not compared(net(), dump, input=IDS).same
    first = write(tmp_path / "e.npz", {"input": IDS.numpy(), "embed": arrays["embed"]})
    assert compared(net(), first).same  # the first argument, whatever its name


def test_half_precision_and_a_batch_of_one_that_is_left_out(tmp_path, arrays) -> None:
    dump = tmp_path / "d.safetensors"
    embed = torch.from_numpy(arrays["embed"][0]).to(torch.bfloat16)
    save_file({"input_ids": IDS, "embed": embed}, dump)
    [row] = compared(net(), dump).rows
    assert (row.verdict, row.dtypes) == ("close", ("float32", "bfloat16"))
    assert row.shapes == ((1, 5, 6), (1, 5, 6))


def test_what_is_a_dump_and_what_are_weights(tmp_path, arrays) -> None:
    state = {name: value.numpy() for name, value in net().state_dict().items()}
    dump, weights = write(tmp_path / "d.npz", arrays), write(tmp_path / "w.npz", state)
    folder = write(tmp_path / "dump", arrays)
    assert is_dump(str(dump)) and is_dump(str(folder))
    assert not is_dump(str(weights)) and is_dump(str(weights), has_rules=True)
    for name in ("digits.safetensors", "five.safetensors", "digits_scripted.pt", "run", "features"):
        assert not is_dump(str(SAMPLES / name)), name
    assert not is_dump("resnet18") and not is_dump(str(tmp_path))
    (folder / "config.json").write_text("{}")
    assert not is_dump(str(folder))
    assert type(hookscope.diff(net(), weights)).__name__ == "WeightDiff"


def test_parameters_with_names_of_their_own_are_compared_as_weights(tmp_path) -> None:
    model = nn.Module()
    model.gain = nn.Parameter(torch.arange(3.0))
    weights = write(tmp_path / "w.npz", {"gain": np.arange(3, dtype=np.float32)})
    found = hookscope.diff(model, weights)
    assert type(found).__name__ == "WeightDiff" and found.same


def language_model(folder: Path) -> tuple[str, Any]:
    from transformers import AutoModelForCausalLM

    spec = tiny_language.gpt2(folder)
    return spec, AutoModelForCausalLM.from_pretrained(folder).eval()


def test_what_the_debugger_of_transformers_wrote(tmp_path) -> None:
    from transformers.model_debugging_utils import model_addition_debugger_context

    spec, model = language_model(tmp_path / "model")
    dump = tmp_path / "dump"
    with model_addition_debugger_context(model, str(dump), do_prune_layers=False, use_repr=False):
        model.forward(input_ids=IDS)
    found = compared(spec, dump, weights="default")
    assert found.same
    others = {row.key: row.other for row in found.rows}
    assert {"transformer.h.1.mlp.c_fc/output", "./output.logits"} <= others.keys()
    assert others["transformer.ln_f/output"] == "GPT2LMHeadModel.transformer.ln_f_outputs"


def test_hidden_states_as_vllm_writes_them(tmp_path) -> None:
    """Tokens without a batch, and the layers in the second dimension."""
    spec, model = language_model(tmp_path / "model")
    with torch.no_grad():
        layers = model(IDS, output_hidden_states=True).hidden_states
    dump = tmp_path / "d.safetensors"
    stacked = torch.stack([layers[0][0], layers[1][0]], 1).contiguous()
    save_file({"token_ids": IDS[0].contiguous(), "hidden_states": stacked}, dump)
    lines = (f'"hidden_states[:, {n}]" = "transformer.{m}"' for n, m in enumerate(("drop", "h.0")))
    found = compared(spec, dump, weights="default", map=rules(tmp_path, *lines))
    assert found.same and len(found.rows) == 2


def test_what_is_wrong_with_a_dump_or_a_rule_is_named(tmp_path, arrays) -> None:
    dump = write(tmp_path / "d.npz", arrays)
    for line, subject in (
        ('"embed + blocks.0[0]" = "head"', "'blocks.0'"),
        ('"embed[..., 9]" = "head"', "'embed'"),
        ('"embed.permute(1, 0)" = "head"', "'embed'"),
        ('"embed + rest" = "blocks.0"', "'rest'"),
        ('"blocks.{n}" = "layers.{n}"', "'layers.0.attn'"),
        ('"blk_{n}" = "blocks.{n}"', "'blk_{n}'"),
    ):
        with pytest.raises(HookscopeError, match=re.escape(subject)):
            compared(net(), dump, map=rules(tmp_path, line))
    folder = write(tmp_path / "dump", arrays)
    (folder / "more.npz").write_bytes(b"no archive")
    with pytest.raises(HookscopeError, match=r"more\.npz"):
        hookscope.diff(net(), folder)
