"""Models of transformers through ``torch.export``, with hooks on the original as the oracle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from torch import Tensor, nn

import hookscope
from hookscope.errors import ModelError
from tests.refusals import refused
from tests.sources.test_exported import by_hand

IDS = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXT = {
    "vocab_size": 96,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = {**TEXT, "image_size": 32, "patch_size": 8}
VISION.pop("vocab_size")
Made = tuple[nn.Module, dict[str, Any]]


def llama() -> Made:
    config = t.LlamaConfig(**TEXT, num_key_value_heads=1)
    return t.LlamaForCausalLM(config), {"input_ids": IDS, "use_cache": False}


def bert() -> Made:
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    return t.BertModel(t.BertConfig(**TEXT)), {"input_ids": IDS, "attention_mask": mask}


def gpt2() -> Made:
    config = t.GPT2Config(vocab_size=96, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return t.GPT2LMHeadModel(config), {"input_ids": IDS, "use_cache": False}


def t5_encoder() -> Made:
    config = t.T5Config(vocab_size=96, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    return t.T5EncoderModel(config), {"input_ids": IDS}


def vit() -> Made:
    return t.ViTModel(t.ViTConfig(**VISION)), {"pixel_values": IMAGE}


def clip() -> Made:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = t.CLIPConfig(text_config={**TEXT, **ends}, vision_config=VISION, projection_dim=8)
    images = IMAGE.expand(2, -1, -1, -1).contiguous()
    mask = torch.ones_like(IDS)
    return t.CLIPModel(config), {"input_ids": IDS, "pixel_values": images, "attention_mask": mask}


def whisper() -> Made:
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))
    }
    config = t.WhisperConfig(
        vocab_size=96,
        d_model=16,
        max_source_positions=20,
        max_target_positions=16,
        num_mel_bins=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **sizes,
    )
    sound = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))
    given = {"input_features": sound, "decoder_input_ids": IDS[:1], "use_cache": False}
    return t.WhisperModel(config), given


def mamba() -> Made:
    config = t.MambaConfig(vocab_size=96, hidden_size=16, num_hidden_layers=2, state_size=4)
    return t.MambaForCausalLM(config), {"input_ids": IDS, "use_cache": False}


def mixtral() -> Made:
    config = t.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=2)
    return t.MixtralForCausalLM(config), {"input_ids": IDS, "use_cache": False}


def gemma() -> Made:
    config = t.Gemma2Config(**TEXT, num_key_value_heads=1, head_dim=8)
    return t.Gemma2ForCausalLM(config), {"input_ids": IDS, "use_cache": False}


def swin() -> Made:
    config = t.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return t.SwinModel(config), {"pixel_values": IMAGE}


def check(make: Callable[[], Made], folder: Path) -> None:
    """Modules that give one tensor give the same; others give tensors that the original gives."""
    torch.manual_seed(0)
    model, given = make()
    model.eval()
    program = torch.export.export(model, (), given, strict=False)
    torch.export.save(program, folder / "net.pt2")
    loaded = hookscope.load_model(folder / "net.pt2").module
    eager, ours = (by_hand(one, **given) for one in (model, loaded))
    assert ours.keys() <= eager.keys()
    assert {name for name in eager.keys() - ours.keys() if "drop_path" not in name} == set()
    for name, tensors in ours.items():
        theirs = eager[name]
        assert len(tensors) <= len(theirs), name
        for tensor in tensors:
            assert any(alike(tensor, other, name.endswith(".grad")) for other in theirs), name
    shot = hookscope.capture(folder / "net.pt2")
    assert {key.partition("/")[0].partition(":")[0] for key in shot} == {
        name or "." for name in ours if not name.endswith(".grad")
    }
    assert hookscope.grads(folder / "net.pt2", loss="sum").keys()


def alike(tensor: Tensor, other: Tensor, is_gradient: bool) -> bool:
    """Equal, in a gradient to rounding: attention with fewer keys is put otherwise in an export."""
    if tensor.shape != other.shape:
        return False
    return torch.allclose(tensor, other, 1e-4, 1e-6) if is_gradient else torch.equal(tensor, other)


OTHERS = (bert, gpt2, vit, clip, whisper, mamba, mixtral, gemma, swin)


@pytest.mark.parametrize(
    "make",
    [llama, t5_encoder, *(pytest.param(make, marks=pytest.mark.exhaustive) for make in OTHERS)],
)
def test_a_small_model_has_the_values_of_the_original(
    make: Callable[[], Made], tmp_path: Path
) -> None:
    check(make, tmp_path)


MADE = """
import sys, torch, transformers as t
config = t.BertConfig(vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                      num_attention_heads=2)
given = {"input_ids": torch.ones(1, 5, dtype=torch.long)}
program = torch.export.export(t.BertModel(config).eval(), (), given, strict=False)
torch.export.save(program, sys.argv[1])
"""

OF_A_TYPE = """
import sys, torch
from dataclasses import dataclass

@dataclass
class Output:
    x: torch.Tensor

torch.export.register_dataclass(Output, serialized_type_name="some_package.Output")

class Net(torch.nn.Module):
    def forward(self, x):
        return Output(x + 1)

torch.export.save(torch.export.export(Net(), (torch.ones(2),)), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_command_opens_a_program_whose_output_has_a_type_of_transformers(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", MADE, "net.pt2"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "hookscope", "capture", "net.pt2", "--layer", "pooler"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "BertPooler" in ran.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_type_that_is_not_registered_is_named_with_what_registers_it(tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    subprocess.run([sys.executable, "-c", OF_A_TYPE, str(file)], check=True)
    with refused(ModelError, r"some_package\.Output", hint="Importing the package that defines it"):
        hookscope.load_model(file)
