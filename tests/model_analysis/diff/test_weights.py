"""``hookscope diff`` of files of weights, and of a model's own values with a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis.weight_diff import WeightDiff
from hookscope.stores.weights.open_weights import open_weights
from hookscope.views.text.text_table import TextOptions
from hookscope.views.weight_diff import weight_diff_lines
from tests.model_analysis.diff import nets
from tests.processes import run_python

NETS = str(Path(nets.__file__))
SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
DIGITS = SAMPLES / "digits.safetensors"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Weights, and the same after some steps: a .safetensors file and a .pth of a wrapped model."""
    generator = np.random.default_rng(1)
    shapes = {"conv.weight": (8, 3, 3, 3), "body.0.fc.weight": (20, 30), "body.0.fc.bias": (20,)}
    old = {n: generator.standard_normal(s).astype("f4") for n, s in shapes.items()}
    new = {name: array.copy() for name, array in old.items()}
    new["conv.weight"][0] *= 2
    new["body.0.fc.bias"] += 1
    a, b = tmp_path / "old.safetensors", tmp_path / "new.pth"
    save_file(old, a)
    torch.save({f"module.{name}": torch.from_numpy(array) for name, array in new.items()}, b)
    return a, b


def test_the_command_names_what_changed_most(run, files) -> None:
    done = run("diff", *files)
    assert (done.rc, done.stderr) == (1, "")
    table = done.stdout.splitlines()
    assert [line.split()[0] for line in table[:3]] == ["tensor", "body.0.fc.bias", "conv.weight"]
    assert "2 of 3 tensors in both differ, 1 is equal." in done.stdout
    assert "The prefix module. of names in B is ignored." in done.stdout
    assert "body.0.fc.weight" not in done.stdout  # it is equal


def test_the_document_has_every_tensor_and_the_totals(run, files) -> None:
    done = run("diff", *files, "--json")
    found = json.loads(done.stdout)
    assert (done.rc, found["command"], found["same"]) == (1, "diff", False)
    assert found["counts"] == {"equal": 1, "close": 0, "differs": 2}
    first, second, third = found["rows"]
    assert (first["name"], first["other"]) == ("body.0.fc.bias", "module.body.0.fc.bias")
    assert (first["changed"], first["share"], third["verdict"]) == (20, 1.0, "equal")
    assert second["share"] == 1 / 8
    assert found["total"]["numel"] == 216 + 600 + 20
    assert found == json.loads(run("diff", *files, "--json").stdout)


def test_equal_files_have_status_0(run, files) -> None:
    done = run("diff", files[0], files[0])
    assert done.rc == 0
    assert done.stdout.splitlines()[0] == "3 tensors in both: all are equal."
    assert run("diff", *files, "--layer", "*.weight", "--layer", "!conv").rc == 0
    assert run("diff", *files, "--atol", "100").rc == 0


def test_rows_are_sorted_and_cut_like_those_of_any_table(run, files) -> None:
    done = run("diff", *files, "--sort", "tensor", "--top", "1")
    assert done.stdout.splitlines()[1].startswith("body.0.fc.bias")
    done = run("diff", *files, "--sort", "-distance", "--top", "1")
    assert done.stdout.splitlines()[1].startswith("conv.weight")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["A", "B", "--equal-nan"],
            "--equal-nan is for models and captures, and A",
            "NaN in both is equal",
        ),
        (["A", "B", "--map", "a=b"], "--map is for models and captures, and A", "use --rename"),
        (["A", "B", "--seed", "3"], "--seed is for models, and A and B are weights", "Leave"),
        (["A", "B", "--dtype", "float16"], "--dtype is for models, and A", "MODEL MODEL --weig"),
        (
            ["A", "NETS:Net", "--input", "zeros:1x3x8x8"],
            "--input is for models, and A has only weights",
            "Leave it out",
        ),
        (
            ["A", "B", "--type", "Conv2d"],
            "--type is for models and captures, and A and B are",
            "Leave it out",
        ),
        (["A", "B", "--layer", "fd"], "No tensor of A or B matches 'fd'.", "The names are: "),
        (["A", "B", "--atol", "-1"], "--atol -1.0 is not a valid tolerance.", "0 or more"),
        (["A", "B", "--rename", "fd=fc"], "begins with 'fd'", "A prefix consists"),
        (["A", "gone.pth"], "There is no file 'gone.pth'.", ""),
        (["A", "A#ema"], "has no parts", "without #"),
        (["A", "CAPTURE"], "is a capture and ", "Name two files of weights, or a model"),
        (["FEATURES", "A"], "is a features folder and ", "Name two files of weights"),
        (["A", "RUN"], "is the folder of a training run and ", "Name two folders"),
        (["A", "resnet18"], "has the name of one in resnet18: ", "--rename"),
        (["NETS:Net", "A", "--weights=A", "--weights=B"], "--weights is given twice, but on", "on"),
        (["A", "CUT"], "cut.safetensors", ""),
    ],
)
def test_mistakes_are_sentences_with_status_2(
    run, refused, files, tmp_path, words, message, hint
) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(files[0].read_bytes()[:-10])
    places = {"A": files[0], "B": files[1], "NETS": NETS, "CUT": cut, "RUN": SAMPLES / "run"}
    places |= {"CAPTURE": SAMPLES / "five.safetensors", "FEATURES": SAMPLES / "features"}
    for name, place in places.items():
        words = [str(place) if word == name else word for word in words]
        words = [word.replace("--weights=" + name, f"--weights={place}") for word in words]
        words = [
            word.replace("NETS:", f"{NETS}:").replace("A#ema", f"{files[0]}#ema") for word in words
        ]
    said = refused("diff", *words)
    assert message in said and hint in said


def test_two_files_are_compared_without_torch(files, clean_environment) -> None:
    script = (
        "import sys; from hookscope.cli.main import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = run_python("-c", script, "diff", *files, env=clean_environment, status=1)
    assert done.stderr.splitlines()[-1] == "False"


# A model's own values


def test_a_model_is_compared_with_its_file_by_its_values(run, tmp_path) -> None:
    """The initial values are those of the seed, and an edited one is found."""
    model = hookscope.load_model(f"{NETS}:Net", seed=5).module
    path = tmp_path / "w.pth"
    torch.save(model.state_dict(), path)
    spec = f"{NETS}:Net"
    done = run("diff", spec, path, "--seed", "5")
    assert done.rc == 0, done.stderr
    assert "(values as built, seed 5)" in done.stdout
    assert run("diff", path, spec).rc == 1  # seed 0
    with torch.no_grad():
        name, parameter = next(iter(model.named_parameters()))
        parameter.view(-1)[0] += 1
    torch.save(model.state_dict(), path)
    found = hookscope.diff(spec, path, seed=5)
    assert isinstance(found, WeightDiff)
    assert found.rows[0].name == name and found.rows[0].measures.changed == 1
    assert found.counts["differs"] == 1


def test_pretrained_and_given_values_are_compared(tmp_path) -> None:
    spec = str(SAMPLES / "digits.py:DigitsCNN")
    initial = hookscope.diff(spec, DIGITS)
    assert not initial.same
    assert hookscope.diff(spec, DIGITS, weights=DIGITS).same
    trained = hookscope.diff(str(SAMPLES / "digits.py:trained"), DIGITS)
    assert trained.same and trained.a.kind == "values as built, seed 0"
    module = hookscope.load_model(spec, weights=DIGITS).module
    assert hookscope.diff(DIGITS, module).same
    scripted = hookscope.diff(str(SAMPLES / "digits_scripted.pt"), DIGITS)
    assert scripted.same and scripted.a.kind == "values as saved"


def test_names_in_the_file_are_renamed_on_whichever_side_it_is(tmp_path) -> None:
    spec = str(SAMPLES / "digits.py:trained")
    weights = open_weights(DIGITS)
    path = tmp_path / "r.safetensors"
    save_file({f"net.{name}": weights.tensor(name) for name in weights}, path)
    assert hookscope.diff(spec, path, rename={"net": ""}).same
    assert hookscope.diff(path, spec, rename={"net": ""}).same
    # No name is in both as it is, so they are compared like that, and the names differ.
    for sides, option in (((spec, path), "net="), ((path, spec), "net="), ((path, DIGITS), "net=")):
        found = hookscope.diff(*sides)
        assert (found.renamed, found.same) == (f"--rename {option}", False)
        assert found.counts["equal"] == len(weights) == len(found.rows)
    bare, wrapped = hookscope.diff(DIGITS, path), hookscope.diff(DIGITS, Wrapped())
    assert (bare.renamed, wrapped.renamed) == ("--rename net=", "--rename =net")
    assert hookscope.diff(DIGITS, Wrapped(), rename={"": "net"}).counts == wrapped.counts


class Wrapped(nn.Module):
    """A model inside another one, so that its names have a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential()
        for name in open_weights(DIGITS):
            layer, _, last = name.partition(".")
            if not hasattr(self.net, layer):
                self.net.add_module(layer, nn.Module())
            own = torch.from_numpy(open_weights(DIGITS).tensor(name))
            setattr(self.net.get_submodule(layer), last, nn.Parameter(own))


class Odd(nn.Module):
    """Every kind of dtype, layout and sharing that a module in memory can have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(6, 4))
        self.head = self.embed
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.brain = nn.Parameter(torch.randn(7).bfloat16())
        self.register_buffer("eighth", torch.randn(9).to(torch.float8_e5m2))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex64).conj())
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}


def test_a_module_in_memory_is_read_whatever_its_tensors_are(tmp_path) -> None:
    model = Odd()
    path = tmp_path / "odd.pth"
    state = {n: v.clone() for n, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
    state["head"] = state["embed"]
    torch.save({n: v.resolve_conj() for n, v in state.items()}, path)
    found = hookscope.diff(model, path)
    assert found.same, [row for row in found.rows if row.verdict != "equal"]
    assert len(found.rows) == 8 and found.tied == ("head",)
    with torch.no_grad():
        model.brain[2] += 1
        model.wave[1] *= 2
    found = hookscope.diff(model, path)
    assert {row.name for row in found.rows if row.verdict == "differs"} == {"brain", "wave"}


def test_a_lazy_module_has_no_values_yet() -> None:
    with pytest.raises(RequestError, match="is lazy"):
        hookscope.diff(nn.Sequential(nn.LazyLinear(3)), DIGITS)


def test_opened_weights_can_be_compared(files) -> None:
    found = hookscope.diff(open_weights(files[0]), files[1])
    assert found.counts["differs"] == 2
    assert repr(found) == "<WeightDiff of 3 tensors: 2 differ, 0 only in A, 0 only in B>"
    assert "<table" in found._repr_html_() and "body.0.fc.bias" in found._repr_html_()


# What is printed


def lines(found: WeightDiff, width: int | None = None) -> list[str]:
    return [line.plain for line in weight_diff_lines(found, TextOptions(width=width))]


def test_adapters_of_many_layers_are_one_line_on_a_terminal(tmp_path) -> None:
    base = {f"layers.{n}.q.weight": np.ones((4, 4), "f4") for n in range(12)}
    lora = {f"layers.{n}.q.lora_{x}.weight": np.ones((4, 2), "f4") for n in range(12) for x in "AB"}
    save_file(base, tmp_path / "base.safetensors")
    save_file(base | lora, tmp_path / "tuned.safetensors")
    found = hookscope.diff(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors")
    printed = lines(found, 100)
    assert [line.split()[0] for line in printed[1:3]] == [
        "layers.*.q.lora_A.weight",
        "layers.*.q.lora_B.weight",
    ]
    assert all(line.endswith("only in B, 12 tensors") for line in printed[1:3])
    assert "24 tensors only in B." in printed
    assert sum("lora_A" in line for line in lines(found)) == 12  # in a pipe each has a line


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_the_terminal(files, width: int) -> None:
    assert max(map(len, lines(hookscope.diff(*files), width))) <= width


def test_changed_dtypes_are_counted(tmp_path) -> None:
    wide = {"a.w": np.ones(3, "f4"), "b.w": np.ones(3, "f4"), "c.w": np.ones(3, "f4")}
    save_file(wide, tmp_path / "a.safetensors")
    narrow = {name: array.astype("f2") for name, array in wide.items()} | {"c.w": wide["c.w"]}
    save_file(narrow, tmp_path / "b.safetensors")
    sides = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    found = hookscope.diff(*sides)
    assert found.same
    assert "Changed dtypes: float32 to float16 (2 tensors)." in lines(found)
    assert not hookscope.diff(*sides, strict=True).same


def test_measures_that_are_not_defined_are_a_dash(tmp_path) -> None:
    save_file({"w": np.zeros(3, "f4")}, tmp_path / "a.safetensors")
    save_file({"w": np.ones(3, "f4")}, tmp_path / "b.safetensors")
    printed = lines(hookscope.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    assert printed[1].split()[3:] == ["Inf", "-", "-", "1", "1", "differs", "A", "is", "zero"]
