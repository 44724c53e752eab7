"""Models from a user's own Python file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope import load_model as load
from hookscope.errors import InputError, ModelError, RequestError
from hookscope.specs.value_readers import CommandLineText
from tests.refusals import refused

HEAD = "import torch\nfrom torch import nn\n"
NET = "class Net(nn.Linear):\n    def __init__(self, width: int = 3): super().__init__(width, 2)\n"


@pytest.fixture
def write(tmp_path: Path):
    def to_file(code: str, name: str = "net.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + code)
        return str(path)

    return to_file


def test_a_class_a_factory_and_an_instance_all_do(write) -> None:
    path = write(NET + "def build(width: int): return Net(width)\nmodel = Net(7)\n")
    assert load(f"{path}:Net").module.in_features == 3
    assert load(f"{path}:Net", model_args={"width": CommandLineText("5")}).module.in_features == 5
    with pytest.raises(RequestError, match="width=wide"):
        load(f"{path}:build", model_args={"width": CommandLineText("wide")})
    assert load(f"{path}:build", model_args={"width": 6}).module.in_features == 6
    assert (
        load(write(NET + "from torch.nn import Conv2d\n_hidden = Net()\n", "one.py")).name == "Net"
    )
    loaded = load(f"{path}:model")
    assert loaded.module.in_features == 7
    assert (loaded.name, loaded.source, loaded.task) == ("model", "file", "")
    assert not loaded.module.training


def test_arguments_in_the_spec_join_those_of_the_option(write) -> None:
    path = write(
        "class Net(nn.Linear):\n"
        "    def __init__(self, width, out=2, act='x'):\n"
        "        super().__init__(width, out)\n"
        "        self.act = act\n"
        "model = Net(7)\n"
    )
    loaded = load(f"{path}:Net(5, act='8')", model_args={"out": CommandLineText("3")})
    assert (loaded.module.in_features, loaded.module.out_features) == (5, 3)
    assert loaded.module.act == "8"  # a quoted value stays text
    assert (loaded.spec, loaded.name) == (f"{path}:Net(5, act='8')", "Net")
    assert load(f"{path}:model()").module.in_features == 7
    with pytest.raises(RequestError, match="'act'"):
        load(f"{path}:Net(5, act='8')", model_args={"act": "y"})
    with pytest.raises(ModelError, match=r"width=6.* 'width'"):
        load(f"{path}:Net(5)", model_args={"width": 6})
    with pytest.raises(ModelError, match="instance"):
        load(f"{path}:model(1)")
    with refused(ModelError, "TypeError", hint="'a'"):
        load(f"{path}:Net('a')")


BUILD = "def build(width: int, deep=False): return nn.ReLU()\nmodel = nn.ReLU()\n"


@pytest.mark.parametrize(
    ("code", "word", "given", "message", "hint"),
    [
        (NET + "model = Net()", "", {}, "2 models", "net.py:Net (class), "),
        ("def build(): return nn.ReLU()", "", {}, "no nn.Module", "net.py:build"),
        ("x = 3", "", {}, "no nn.Module", "function"),
        (NET, ":Nett", {}, "'Nett'", "Did you mean Net?"),
        ("x = 3", ":x", {}, "int", "nn.Module"),
        ("def build(): return {}", ":build", {}, "a dict", "nn.Module"),
        ("def build(): return 3", ":build", {}, "an int", "nn.Module"),
        (BUILD, ":build", {}, "'width'", "build(width: int, deep=False)"),
        (BUILD, ":build", {"width": 1, "depth": 2}, "'depth'", ""),
        (BUILD, ":model", {"width": 1}, "instance", ""),
    ],
)
def test_a_name_that_is_no_model_or_takes_other_arguments_is_refused(
    write, code, word, given, message, hint
) -> None:
    with refused(ModelError, message=message, hint=hint):
        load(write(code) + word, model_args=given)


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("1 / 0\n", "net.py, line 3, raised ZeroDivisionError: division by zero", ""),
        ("def f(:\n", "net.py, line 3, raised SyntaxError", ""),
        ("x = 1\ny = foo(x\n", "net.py, line 4, raised SyntaxError", ": y = foo(x"),
        ("import not_there_at_all\n", "line 3, raised ModuleNotFoundError", ""),
        ("from torch import not_there_at_all\n", "line 3, raised ImportError", "python FILE.py"),
        ("from . import helper\n", "line 3, raised ImportError", ""),
        ("import sys; sys.exit(3)\n", "line 3, raised SystemExit: 3", ""),
        ("class Net(nn.Module):\n    def __init__(self): oops\n", "line 4, raised NameError", ""),
        ("def Net():\n    return nn.Linear('a', 2)\n", "line 4, raised TypeError", ""),
    ],
)
def test_what_the_file_raises_is_told_with_its_line(write, code, message, hint) -> None:
    with refused(ModelError, message=message, hint=hint):
        load(write(code) + ":Net")


def test_a_file_with_relative_imports_is_named_as_a_module_of_its_package(
    write, tmp_path, monkeypatch
) -> None:
    write("WIDTH = 5\n", "nets_with_parts/sizes.py")
    file = write("from .sizes import WIDTH\n" + NET, "nets_with_parts/linear.py")
    with refused(ModelError, repr(str(tmp_path)), hint="nets_with_parts.linear:NAME"):
        load(f"{file}:Net")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        load("nets_with_parts/linear.py:Net")
    assert "nets_with_parts.linear:NAME" in caught.value.hint
    assert str(tmp_path) not in caught.value.hint
    assert load("nets_with_parts.linear:Net").module.in_features == 3


@pytest.mark.parametrize(
    ("marked", "imported", "module"),
    [
        ((), "from ..sizes import WIDTH", "outer.inner.net"),
        (("outer",), "from ..sizes import WIDTH", "outer.inner.net"),
        (("outer", "outer/inner"), "from . import sizes", "outer.inner.net"),
        (("outer/inner",), "from . import sizes", "inner.net"),
    ],
)
def test_the_package_of_a_relative_import_has_all_the_folders_that_it_needs(
    write, tmp_path, marked, imported, module
) -> None:
    (tmp_path / "outer").mkdir()
    file = write(imported + "\n", "outer/inner/net.py")
    for folder in marked:
        (tmp_path / folder / "__init__.py").touch()
    with refused(ModelError, hint=f"write {module}:NAME"):
        load(file)


def test_an_unknown_input_is_answered_with_the_options_that_give_it(write) -> None:
    path = write(NET)
    with refused(InputError, r"shape.*input=FILE.*example_input\(\)", message=f"{path}:Net"):
        hookscope.capture(f"{path}:Net")


def test_ctrl_c_in_the_file_is_no_error_of_the_file(write) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(write("raise KeyboardInterrupt\n") + ":Net")


def test_imports_find_the_files_beside_it_and_each_file_its_own(
    write, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    paths, modules = list(sys.path), set(sys.modules)
    for width in (4, 9):
        write(f"WIDTH = {width}\n", f"in{width}/helper_of_a_test.py")
        user = "import helper_of_a_test\nmodel = nn.Linear(helper_of_a_test.WIDTH, 1)\n"
        loaded = load(write(user, f"in{width}/net.py"))
        assert loaded.module.in_features == width
    assert sys.path == paths
    assert not [name for name in set(sys.modules) - modules if "helper" in name]
    assert not list(tmp_path.rglob("__pycache__"))


def test_dataclasses_and_deferred_annotations_work_in_the_file(write) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass C:\n    w: 'int' = 3\n" + NET
    path = Path(write(code))
    path.write_text("from __future__ import annotations\n" + path.read_text())
    assert load(f"{path}:Net", model_args={"width": CommandLineText("4")}).module.in_features == 4


def test_prints_of_the_file_stay_off_stdout(write, capsys) -> None:
    load(write("print('hello')\n" + NET))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello\n")


def test_weights_follow_the_seed_and_leave_the_global_state_alone(write) -> None:
    path = write("torch.rand(3)\n" + NET)
    state = torch.get_rng_state()
    weights = [load(path, seed=seed).module.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    assert torch.equal(weights[0], torch.nn.Linear(3, 2).weight)


def test_a_file_offers_example_preprocess_and_categories(write) -> None:
    offers = "def example_input(): return torch.rand(1, 3)\ncategories = ['cat', 'dog']\n"
    loaded = load(write(NET + offers))
    assert loaded.categories == ("cat", "dog")
    assert torch.equal(loaded.example_input, loaded.example(0))
    assert not torch.equal(loaded.example(1), loaded.example(0))
    assert loaded.preprocess is None


def test_what_is_offered_may_fail_with_its_line(write) -> None:
    from PIL import Image

    offers = "def example_input(): return 1 / 0\ndef preprocess(image): return [1]\n"
    loaded = load(write(NET + offers))
    with pytest.raises(ModelError, match="line 5, raised ZeroDivisionError"):
        loaded.example(0)
    assert loaded.preprocess is not None
    with pytest.raises(ModelError, match="returned list"):
        loaded.preprocess(Image.new("RGB", (2, 2)))


def test_a_module_is_imported_from_the_current_folder(tmp_path, monkeypatch) -> None:
    package = tmp_path / "nets_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("from .parts import Net\n")
    (package / "parts.py").write_text(HEAD + "from .sizes import WIDTH\n" + NET + "1\n")
    (package / "sizes.py").write_text("WIDTH = 5\n")
    (package / "broken.py").write_text("x = 1\nx / 0\n")
    monkeypatch.chdir(tmp_path)
    loaded = load("nets_of_a_test.parts:Net", model_args={"width": CommandLineText("5")})
    assert (loaded.module.in_features, loaded.source) == (5, "module")
    assert load("nets_of_a_test:").name == "Net"
    with pytest.raises(ModelError, match=r"broken.py, line 2, raised ZeroDivisionError"):
        load("nets_of_a_test.broken:Net")
    with pytest.raises(ModelError, match=r"'nets_of_a_test\.none'"):
        load("nets_of_a_test.none:Net")
    with refused(ModelError, "'Nets'", hint="Net?"):
        load("nets_of_a_test:Nets")


def test_an_instance_in_an_imported_module_stays_as_it_is(tmp_path, monkeypatch) -> None:
    (tmp_path / "held_by_a_test.py").write_text(f"{HEAD}net = nn.Linear(2, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    net = importlib.import_module("held_by_a_test").net
    before = net.weight.detach().clone()
    files = []
    for value in (1.0, 2.0):
        files.append(str(tmp_path / f"{value}.pth"))
        torch.save({"weight": torch.full((2, 2), value), "bias": torch.zeros(2)}, files[-1])
    found = hookscope.diff(
        *["held_by_a_test:net"] * 2, weights=files, dtype=["float32", "float64"], shape=(1, 2)
    )
    assert not found.same
    assert net.training
    assert net.weight.dtype is torch.float32
    assert torch.equal(net.weight, before)


TRANSFORMERS = """
import transformers as t
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
IMAGE = SIZES | {"image_size": 16, "patch_size": 8}
TEXT = SIZES | {"vocab_size": 50, "max_position_embeddings": 12}
def bert(): return t.BertForSequenceClassification(t.BertConfig(**TEXT))
def vit(): return t.ViTForImageClassification(t.ViTConfig(**IMAGE))
def clip():
    config = t.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=4)
    return t.CLIPModel(config)
def t5():
    config = t.T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    config.decoder_start_token_id = 3
    return t.T5ForConditionalGeneration(config)
"""


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("bert", {"input_ids": (1, 12)}),
        ("vit", {"pixel_values": (1, 3, 16, 16)}),
        ("clip", {"input_ids": (1, 12), "pixel_values": (1, 3, 16, 16)}),
        ("t5", {"input_ids": (1, 16), "decoder_input_ids": (1, 1)}),
    ],
)
def test_a_model_of_transformers_has_the_input_that_it_has_from_a_folder(
    write, tmp_path: Path, name: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    loaded = load(f"{write(TRANSFORMERS)}:{name}")
    example = loaded.example(0)
    assert {key: tuple(value.shape) for key, value in example.items()} == shapes
    loaded.module.save_pretrained(tmp_path / "saved")  # its folder names the same class
    from_folder = load(f"hf:{tmp_path / 'saved'}").example(0)
    assert from_folder.keys() == example.keys()
    assert all(torch.equal(example[key], from_folder[key]) for key in example)
    # The live model has it too, and a shape is that of its main input.
    main = next(iter(shapes))
    shape = (2, *shapes[main][1:])
    recorded = hookscope.capture(loaded.module, what="input", layers=".", shape=shape)
    assert recorded[f"./input.{main}"].shape == shape
    assert f"./input.{main}" in hookscope.capture(loaded.module, what="input", layers=".")


def test_the_example_of_the_file_comes_before_that_of_the_configuration(write) -> None:
    own = "def example_input(): return {'input_ids': torch.tensor([[7, 8]])}\n"
    loaded = load(f"{write(TRANSFORMERS + own)}:bert")
    assert loaded.example(0)["input_ids"].tolist() == [[7, 8]]
