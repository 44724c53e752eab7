"""Files that torch exported faithfully: ``diff`` finds no difference, but finds one planted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import numpy_helper
from torch import Tensor, nn

import hookscope
from tests.sources.onnx.conftest import export
from tests.zoo import Module

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SIZES, "intermediate_size": 32, "vocab_size": 64}
IMAGE = {**SIZES, "intermediate_size": 32, "image_size": 32, "patch_size": 8}
SWIN = {
    **{"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2]},
    **{"num_heads": [1, 2], "window_size": 4},
}
LANGUAGE = {**TEXT, "num_key_value_heads": 1, "use_cache": False}
# The class of transformers without "Model" or "EncoderModel", and the arguments of its config.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Albert": {**TEXT, "embedding_size": 8, "num_hidden_layers": 3},
    "Bert": TEXT,
    "ConvNext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 64},
    "Electra": {**TEXT, "embedding_size": 8},
    "GPT2": {
        **{"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32},
        "use_cache": False,
    },
    "Llama": LANGUAGE,
    "MobileBert": {
        **{**TEXT, "hidden_size": 32, "embedding_size": 16, "intra_bottleneck_size": 16},
        "num_feedforward_networks": 2,
    },
    "MPNet": TEXT,
    "Qwen2": LANGUAGE,
    "Roberta": TEXT,
    "SqueezeBert": {
        **{**TEXT, "embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1},
        **{"post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    },
    "Swin": SWIN,
    "Swinv2": SWIN,
    "T5": {
        **{"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        "vocab_size": 64,
    },
    "ViT": IMAGE,
}
ENCODERS = ("T5",)
CLASSIFIERS = ("mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5")


def branches() -> nn.Module:
    """Two calls of one module by different lines, and a chunk whose halves change places."""

    def forward(self: Any, x: Tensor) -> Tensor:
        left, right = self.mix(self.mix(x) + x).chunk(2, dim=1)
        return torch.cat([right, left], dim=1)

    return Module(forward, mix=nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))


def recurrent() -> nn.Module:
    """A cell that is called for each time step."""

    def forward(self: Any, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[0])
        for step in range(3):
            state = self.cell(x[step], state)
        return self.head(state)

    return Module(forward, cell=nn.GRUCell(4, 4), head=nn.Linear(4, 2))


OWN = {"branches": (branches, (1, 4, 6, 6)), "recurrent": (recurrent, (3, 1, 4))}


def model_and_input(name: str) -> tuple[nn.Module, dict[str, Tensor] | Tensor]:
    """A model in eval mode, and its input: by name for transformers."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        if name in OWN:
            kind, shape = OWN[name]
            return kind().eval(), torch.randn(shape)
        if name in CLASSIFIERS:
            model = torchvision.models.get_model(name, weights=None)
            return model.eval(), torch.randn(1, 3, 64, 64)
        import transformers

        config = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name])
        suffix = "EncoderModel" if name in ENCODERS else "Model"
        model = getattr(transformers, f"{name}{suffix}")(config).eval()
        if model.main_input_name == "pixel_values":
            return model, {"pixel_values": torch.randn(1, 3, 32, 32)}
        return model, {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}


NAMES = (*TRANSFORMERS, *CLASSIFIERS, *OWN)
EXPORTERS = ("newer", "older")
# The exporters of torch 2.14 fail with these, but for the last: its layers are called by forward,
# so the older exporter does not know their names.
NOT_EXPORTED = {
    *(("Swin", "newer"), ("T5", "newer"), ("GPT2", "older"), ("Llama", "older")),
    *(("Qwen2", "older"), ("SqueezeBert", "older")),
}
PAIRS = [(n, e) for n in NAMES for e in EXPORTERS if (n, e) not in NOT_EXPORTED]


def exported(
    name: str, exporter: str, folder: Path
) -> tuple[nn.Module, dict[str, Tensor] | Tensor, Path]:
    model, value = model_and_input(name)
    path = folder / "net.onnx"
    if not isinstance(value, dict):
        export(model, (value,), path, dynamo=exporter == "newer")
    elif exporter == "newer":
        export(model, (), path, kwargs=value)
    else:  # this exporter gives every argument by position, which wrappers of forward do not take
        forward = model.forward
        model.forward = lambda value: forward(value)
        export(model, tuple(value.values()), path, input_names=list(value), dynamo=False)
        del model.forward
    return model, value, path


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "exporter"), PAIRS)
def test_a_faithful_export_has_no_difference(name: str, exporter: str, tmp_path: Path) -> None:
    model, value, path = exported(name, exporter, tmp_path)
    found = hookscope.diff(model, path, input=value)
    assert found.same, [(r.key, r.other, r.by) for r in found.rows if r.verdict == "differs"]
    assert found.rows[-1].key.startswith("./output")
    called = sum(record.module != "." for record in hookscope.capture(path, input=value).records)
    assert len(found.rows) > called / 2
    assert hookscope.diff(model, path, input=value, floor="float64").faults == ()


def scale_a_weight(path: Path) -> str:
    """A fault: the middle one of the matrices is larger; the name of its module."""
    proto = onnx.load(path)
    named = [t for t in proto.graph.initializer if len(t.dims) > 1 and t.name.endswith(".weight")]
    tensor = named[len(named) // 2]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array * 1.5), tensor.name))
    onnx.save(proto, path)
    return tensor.name.removesuffix(".weight")


@pytest.mark.exhaustive
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["Albert", "MobileBert", "Swinv2", "resnet18"])
def test_a_difference_planted_in_one_is_found(name: str, exporter: str, tmp_path: Path) -> None:
    model, value, path = exported(name, exporter, tmp_path)
    module = scale_a_weight(path)
    found = hookscope.diff(model, path, input=value)
    assert not found.same and found.first is not None
    assert found.first.key == f"{module}/output" or name == "resnet18", (found.first, module)
    [fault] = hookscope.diff(model, path, input=value, floor="float64").faults
    # A batch norm is a part of the convolution in the file, whose output is that of the norm.
    assert fault.module == module or name == "resnet18"
