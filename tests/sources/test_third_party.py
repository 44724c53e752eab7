"""Models of timm, of transformers, and of sources that other packages register."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import hookscope
from hookscope import load_model as load
from hookscope.errors import EnvironmentFault, ModelError, RequestError, WeightsError
from hookscope.tensors.nested import as_call
from tests.conftest import Run
from tests.refusals import refused
from tests.sources.third_party_models import write_configuration

PLUGIN = "from torch import nn\ndef load(name, *, weights, model_args, seed, meta):\n"


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package with an entry point, as an installer would leave it."""

    def install(code: str) -> Path:
        site = tmp_path / "site"
        info = site / "nets_to_go-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nets-to-go\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[hookscope.sources]\nnets = nets_to_go:load\n")
        (site / "nets_to_go.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "nets_to_go", raising=False)
        return site

    return install


def test_a_registered_source_is_asked(register, tmp_path: Path) -> None:
    register(PLUGIN + "    return nn.Linear(model_args['width'], len(name))\n")
    loaded = load("nets:four", model_args={"width": 3})
    assert (loaded.source, loaded.name, loaded.module.out_features) == ("nets", "four", 4)
    assert torch.equal(
        loaded.module.weight, load("nets:four", model_args={"width": 3}).module.weight
    )
    save_file({"weight": torch.ones(4, 3), "bias": torch.zeros(4)}, tmp_path / "w.safetensors")
    filled = load("nets:four", model_args={"width": 3}, weights=tmp_path / "w.safetensors")
    assert torch.equal(filled.module.weight, torch.ones(4, 3))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import not_there", "nets-to-go as nets_to_go:load"),
        (PLUGIN + "    return 3", "int for 'net'"),
        (PLUGIN + "    return 1 / 0", "'net': ZeroDivisionError"),
    ],
)
def test_a_broken_source_is_named(register, code: str, said: str) -> None:
    register(code)
    with pytest.raises((EnvironmentFault, ModelError), match=said):
        load("nets:net")


def test_the_command_knows_a_registered_source(register, run: Run, repo: Path) -> None:
    site = register(PLUGIN + "    return nn.Linear(2, 2)\n")
    assert "Linear(2, 2)" in run("tree", "nets:net", env={"PYTHONPATH": f"{repo}:{site}"}).stdout


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("word", "package"), [("timm:resnet18", "timm"), ("hf:x", "transformers")])
def test_a_missing_package_is_told_with_its_extra(
    run: Run, repo: Path, tmp_path: Path, word: str, package: str
) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\nclass Hide:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == '{package}':\n"
        f"            raise ModuleNotFoundError('No module named {package}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    done = run("tree", word, env={"PYTHONPATH": f"{tmp_path / 'hide'}:{repo}"})
    assert done.rc == EnvironmentFault.exit_code
    assert f'pip install "hookscope[{package}]"' in done.stderr


def test_timm_brings_its_preprocessing_and_its_classes() -> None:
    import timm
    from timm import data

    loaded = load("timm:resnet10t")
    config = data.resolve_model_data_config(timm.create_model("resnet10t"))
    image = Image.linear_gradient("L").resize((300, 200)).convert("RGB")
    expected = data.create_transform(**config, is_training=False)(image)
    assert loaded.preprocess is not None
    assert torch.equal(loaded.preprocess(image), expected)
    assert loaded.shape == (1, *config["input_size"])
    assert loaded.categories[3] == "tiger shark"
    torch.manual_seed(0)
    assert torch.equal(loaded.module.fc.weight, timm.create_model("resnet10t").fc.weight)


def test_timm_answers_a_wrong_name_or_argument() -> None:
    with refused(ModelError, "'resnt18'", hint="resnet18"):
        load("timm:resnt18")
    with pytest.raises(ModelError) as caught:
        load("timm:no-such-model-of-timm")
    assert "hf:" not in caught.value.hint  # only a name without a source may be of another source
    with pytest.raises(ModelError, match="wide=3"):
        load("timm:resnet10t", model_args={"wide": 3})
    with pytest.raises(RequestError, match="argument"):
        load("timm:resnet10t", model_args={"pretrained": True})


def test_cached_weights_of_timm_are_loaded_and_missing_ones_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused(WeightsError, "HF_HUB_OFFLINE", message=str(tmp_path), hint="https://"):
        load("timm:resnet10t", weights="default")
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
        load("hf:org/name", weights="default")
    state = load("timm:resnet10t", seed=7).module.state_dict()
    folder = tmp_path / "models--timm--resnet10t.c3_in1k"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save_file(state, folder / "snapshots" / "abc" / "model.safetensors")
    loaded = load("timm:resnet10t", weights="default")
    assert all(torch.equal(value, state[key]) for key, value in loaded.module.state_dict().items())
    assert loaded.weights.name == "c3_in1k"


def save_bert(folder: Path) -> torch.nn.Module:
    """A folder as transformers writes it, with weights, a vocabulary and named classes."""
    from transformers import AutoConfig, BertForSequenceClassification, BertTokenizer

    config = AutoConfig.from_pretrained(write_configuration("bert", folder))
    config.id2label = {0: "bad", 1: "fair", 2: "good"}
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "day"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return model


def test_a_folder_brings_its_weights_tokenizer_and_classes(tmp_path: Path) -> None:
    model = save_bert(tmp_path)
    loaded = load(f"hf:{tmp_path}")
    state = model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in loaded.module.state_dict().items())
    assert (loaded.categories, loaded.weights.name) == (("bad", "fair", "good"), "as saved")
    assert loaded.own_text is not None
    call = loaded.own_text.run(["a fine day", "a"])
    assert call["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    args, kwargs = as_call(call)
    assert torch.equal(loaded.module(*args, **kwargs).logits, model(**call).logits)
    fresh = load(f"hf:{tmp_path}/config.json")
    with pytest.raises(WeightsError, match="weights"):
        load(f"hf:{tmp_path}/config.json", weights="default")
    assert fresh.weights.name == "random"
    assert not torch.equal(fresh.module.classifier.weight, model.classifier.weight)


def test_pictures_and_sound_go_through_the_processors_of_the_folder(tmp_path: Path) -> None:
    from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor

    vit = write_configuration("vit", tmp_path / "vit")
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(vit)
    image = Image.linear_gradient("L").convert("RGB")
    loaded = load(f"hf:{vit}")
    assert loaded.preprocess is not None
    made = loaded.preprocess(image)
    assert torch.equal(made, processor(images=image, return_tensors="pt")["pixel_values"][0])
    assert loaded.arrange([made, made])["pixel_values"].shape == (2, 3, 32, 32)
    speech = write_configuration("wav2vec2", tmp_path / "speech")
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(speech)
    sound = load(f"hf:{speech}").own_sound
    assert sound is not None
    assert sound.rate == 8000
    assert sound.run([torch.randn(900), torch.randn(700)])["input_values"].shape == (2, 900)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ""),
        ("[]", "model_type"),
        ('{"model_type": "berd"}', "'berd'"),
        ('{"model_type": "own", "auto_map": {}}', "run"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "bert"),
    ],
)
def test_a_configuration_that_will_not_do_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with refused(ModelError, message=said):
        load(f"hf:{tmp_path}")


def test_values_of_a_configuration_and_the_kind_of_attention_can_be_set(tmp_path: Path) -> None:
    word = f"hf:{write_configuration('bert', tmp_path)}"
    loaded = load(word, model_args={"num_hidden_layers": 1}, attn="eager")
    assert len(loaded.module.bert.encoder.layer) == 1
    shot = hookscope.capture(word, attn="eager", attention=True)
    assert [key for key in shot if key.endswith("/attention")]
    with pytest.raises(ModelError, match="'num_hidden_layer'"):
        load(word, model_args={"num_hidden_layer": 1})
    with pytest.raises(ModelError, match="'eagre'"):
        load(word, attn="eagre")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("method", "settings", "package"),
    [
        ("bitsandbytes", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ("gptq", {"bits": 4, "group_size": 32}, "optimum"),
        ("awq", {"bits": 4, "group_size": 32, "zero_point": True}, "gptqmodel"),
    ],
)
def test_the_package_that_quantized_weights_need_is_named(
    tmp_path: Path, run: Run, method: str, settings: dict[str, Any], package: str
) -> None:
    if find_spec(package):  # transformers then reads the weights
        pytest.skip(f"{package} is installed")
    save_bert(tmp_path)
    path = tmp_path / "config.json"
    quantization = {"quant_method": method, **settings}
    content = json.loads(path.read_text()) | {"quantization_config": quantization}
    path.write_text(json.dumps(content))
    done = run("capture", f"hf:{tmp_path}")
    assert done.rc == EnvironmentFault.exit_code
    assert f"({method})" in done.stderr and package in done.stderr
    plain = run("capture", f"hf:{path}", "--layer", "classifier", "--no-output")
    assert plain.rc == 0
    assert f"names {method}" in plain.stderr


def test_quantized_weights_give_the_values_of_a_plain_forward_hook(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=99, num_hidden_layers=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    LlamaForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=settings, device_map="cpu"
    ).save_pretrained(tmp_path / "small")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "small", local_files_only=True).eval()
    kept = {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(
                lambda module, args, output, name=name: kept.update({f"{name}/output": output})
            )
    tokens = {"input_ids": torch.arange(6)[None]}
    with torch.no_grad():
        model(**tokens)
    word = f"hf:{tmp_path}/small"
    capture = hookscope.capture(word, layers="*_proj", input=tokens, verify=True)
    assert list(capture) == list(kept)
    assert all(torch.equal(capture[key], kept[key]) for key in kept)
    assert {record.type for record in capture.records} == {"Linear4bit"}
