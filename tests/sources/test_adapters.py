"""Adapters of peft: the outputs are those of peft, and whether they change anything is said."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError, RequestError, WeightsError, WeightsFileError

pytest.importorskip("peft")
IDS = torch.tensor([[3, 4, 5]])


@pytest.fixture(scope="module")
def base() -> Path:
    return Path(__file__).resolve().parents[2] / "sample_models" / "capitals"


@pytest.fixture(scope="module")
def saved(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an adapter of the sample, and keeps the logits of peft beside it."""
    import peft
    from transformers import AutoModelForCausalLM

    def make(kind: str = "LoraConfig", trained: bool = True, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("adapter")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_pretrained(base)
            if kind == "LoraConfig":
                options = {"r": 2, "target_modules": ["q_proj", "v_proj"], **options}
            config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
            adapted = peft.get_peft_model(model, config)
            for parameter_name, parameter in adapted.named_parameters():
                if trained and ("lora_B" in parameter_name or "ia3_l" in parameter_name):
                    nn.init.normal_(parameter)
            adapted.save_pretrained(folder)
            with torch.no_grad():
                logits = adapted.eval()(input_ids=IDS).logits
        torch.save(logits, folder / "logits.pt")
        return folder

    return make


def test_the_output_is_that_of_peft_with_its_layers_named(
    base: Path, saved: Callable[..., Path]
) -> None:
    folder = saved()
    state = torch.get_rng_state()
    shot = hookscope.capture(f"hf:{base}", adapter=folder, input={"input_ids": IDS})
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(shot["./output.logits"], torch.load(folder / "logits.pt"))
    q = "model.layers.0.self_attn.q_proj"
    parts = [shot[f"{q}.{name}/output"] for name in ("base_layer", "lora_B.default")]
    scaling = 8 / 2  # lora_alpha over r
    torch.testing.assert_close(shot[f"{q}/output"], parts[0] + scaling * parts[1])
    plain = hookscope.capture(f"hf:{base}", input={"input_ids": IDS})
    assert torch.equal(plain[f"{q}/output"], parts[0])
    entry = shot.metadata["model"]["adapter"]
    assert (entry["folder"], entry["type"], entry["layers"]) == (str(folder), "LORA", 8)
    assert entry["changes"] is True and len(entry["blake3"]) == 64
    assert "peft" in shot.metadata["versions"] and "adapter" not in plain.metadata["model"]


def test_an_adapter_that_changes_nothing_is_said_to_and_a_saved_module_is_a_change(
    base: Path, saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    from safetensors.torch import load_file, save_file

    folder = saved(trained=False, modules_to_save=["lm_head"])
    with caplog.at_level(logging.INFO, "hookscope"):
        same = hookscope.load_model(f"hf:{base}", adapter=folder)
    assert same.adapter is not None and same.adapter.changes is False
    assert "updates" in caplog.text
    file = folder / "adapter_model.safetensors"
    values = load_file(file)
    name = next(name for name in values if "lm_head" in name)
    values[name] = values[name] + 1
    save_file(values, file, {"format": "pt"})
    other = hookscope.load_model(f"hf:{base}", adapter=folder)
    assert other.adapter is not None and other.adapter.changes is True


def test_of_other_types_it_is_not_known(base: Path, saved: Callable[..., Path]) -> None:
    folder = saved("IA3Config", target_modules=["k_proj"], feedforward_modules=[])
    shot = hookscope.capture(f"hf:{base}", adapter=folder, layers=".", input={"input_ids": IDS})
    assert torch.equal(shot["./output.logits"], torch.load(folder / "logits.pt"))
    entry = shot.metadata["model"]["adapter"]
    assert (entry["type"], entry["changes"]) == ("IA3", None)


def test_its_layers_are_shown_have_gradients_and_are_compared(
    base: Path, saved: Callable[..., Path]
) -> None:
    folder, given, spec = saved(), {"input_ids": IDS}, f"hf:{base}"
    names = [node.name for node in hookscope.tree(spec, adapter=folder).modules]
    assert "model.layers.3.self_attn.v_proj.lora_A.default" in names
    shot = hookscope.grads(spec, adapter=folder, input=given, loss="sum", what="param")
    q = "model.layers.0.self_attn.q_proj"
    assert f"{q}.base_layer/weight.grad" in shot and f"{q}.lora_B.default/weight.grad" in shot
    for trained, other in ((True, folder), (False, saved(trained=False))):
        found = hookscope.diff(spec, spec, adapter=["none", other], input=given, layers=".")
        assert found.same is not trained


def test_what_is_no_adapter_is_refused(
    base: Path, saved: Callable[..., Path], tmp_path: Path
) -> None:
    wrong: list[tuple[Any, Any, type[HookscopeError], str]] = [
        ("resnet18", saved(), RequestError, "'resnet18' is not one"),
        (nn.Linear(2, 2), saved(), RequestError, "a module"),
        (f"hf:{base}", tmp_path, WeightsError, "adapter_config.json"),
        (
            f"hf:{base}",
            saved("PromptTuningConfig", num_virtual_tokens=2),
            WeightsError,
            "cannot be attached",
        ),
    ]
    for model, folder, error, message in wrong:
        with pytest.raises(error, match=message):
            hookscope.capture(model, adapter=folder, input={"input_ids": IDS})


def test_an_adapter_of_another_model_or_with_missing_values_is_refused(
    base: Path, saved: Callable[..., Path]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = saved()
    file = folder / "adapter_model.safetensors"
    values = load_file(file)
    lost = dict(list(values.items())[1:])
    save_file(lost, file, {"format": "pt"})
    with pytest.raises(WeightsFileError, match="1 tensor"):
        hookscope.load_model(f"hf:{base}", adapter=folder)
    wide = {name: torch.cat([value, value], -1) for name, value in values.items()}
    save_file(wide, file, {"format": "pt"})
    with pytest.raises(HookscopeError, match=r"another shape|cannot be attached"):
        hookscope.load_model(f"hf:{base}", adapter=folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = ["no_such_layer"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="LlamaForCausalLM"):
        hookscope.load_model(f"hf:{base}", adapter=folder)
