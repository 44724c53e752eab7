"""Models of transformers through ``torch.export``, with hooks on the original as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hookscope
from hookscope.errors import ModelError
from tests.processes import run_python
from tests.refusals import refused
from tests.sources.test_exported import by_hand
from tests.sources.third_party_models import TRANSFORMERS

IDS = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(1, 8, 100, generator=torch.Generator().manual_seed(0))
WORDS = {"input_ids": IDS, "use_cache": False}
MASKED = {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}
BOTH = {"input_ids": IDS, "pixel_values": torch.cat([IMAGE, IMAGE])}
GIVEN: dict[str, dict[str, Any]] = {
    "llama": WORDS,
    "t5": {"input_ids": IDS},
    "bert": MASKED,
    "gpt2": WORDS,
    "vit": {"pixel_values": IMAGE},
    "clip": {**BOTH, "attention_mask": torch.ones_like(IDS)},
    "whisper": {"input_features": SOUND, "decoder_input_ids": IDS[:1], "use_cache": False},
    "mamba": WORDS,
    "mixtral": WORDS,
    "gemma2": WORDS,
    "swin": {"pixel_values": IMAGE},
}
QUICK = ("llama", "t5")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.exhaustive) for n in GIVEN]
)
def test_a_small_model_has_the_values_of_the_original(name: str, tmp_path: Path) -> None:
    """Modules that give one tensor give the same; others give tensors that the original gives."""
    import transformers

    head, values = TRANSFORMERS[name]
    build = getattr(transformers, "T5EncoderModel" if name == "t5" else head)
    torch.manual_seed(0)
    model, given = build(transformers.AutoConfig.for_model(name, **values)).eval(), GIVEN[name]
    program = torch.export.export(model, (), given, strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = hookscope.load_model(tmp_path / "net.pt2").module
    eager, ours = (by_hand(one, **given) for one in (model, loaded))
    assert ours.keys() <= eager.keys()
    assert {name for name in eager.keys() - ours.keys() if "drop_path" not in name} == set()
    for name, tensors in ours.items():
        theirs = eager[name]
        assert len(tensors) <= len(theirs), name
        for tensor in tensors:
            assert any(alike(tensor, other, name.endswith(".grad")) for other in theirs), name
    shot = hookscope.capture(tmp_path / "net.pt2")
    assert {key.partition("/")[0].partition(":")[0] for key in shot} == {
        name or "." for name in ours if not name.endswith(".grad")
    }
    assert hookscope.grads(tmp_path / "net.pt2", loss="sum").keys()


def alike(tensor: Tensor, other: Tensor, is_gradient: bool) -> bool:
    """Equal, in a gradient to rounding: attention with fewer keys is put otherwise in an export."""
    if tensor.shape != other.shape:
        return False
    return torch.allclose(tensor, other, 1e-4, 1e-6) if is_gradient else torch.equal(tensor, other)


OF_TRANSFORMERS = """
import torch, transformers as t
config = t.BertConfig(vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                      num_attention_heads=2)
given = {"input_ids": torch.ones(1, 5, dtype=torch.long)}
program = torch.export.export(t.BertModel(config).eval(), (), given, strict=False)
torch.export.save(program, "net.pt2")
"""

OF_ANOTHER_PACKAGE = """
import torch
from dataclasses import dataclass

@dataclass
class Output:
    x: torch.Tensor

torch.export.register_dataclass(Output, serialized_type_name="some_package.Output")

class Net(torch.nn.Module):
    def forward(self, x):
        return Output(x + 1)

torch.export.save(torch.export.export(Net(), (torch.ones(2),)), "net.pt2")
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_output_of_a_type_of_transformers_is_opened_and_another_one_is_named(
    tmp_path: Path,
) -> None:
    run_python("-c", OF_TRANSFORMERS, cwd=tmp_path, status=0)
    command = "hookscope", "capture", "net.pt2", "--layer", "pooler"
    assert "BertPooler" in run_python("-m", *command, cwd=tmp_path, status=0).stdout
    run_python("-c", OF_ANOTHER_PACKAGE, cwd=tmp_path, status=0)
    with refused(ModelError, r"some_package\.Output", hint="Import"):
        hookscope.load_model(tmp_path / "net.pt2")
