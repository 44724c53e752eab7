"""Mistakes on the command line: unquoted patterns, other names of a choice, a missing layer."""

from __future__ import annotations

from pathlib import Path

import pytest

import hookscope
from hookscope.errors import RequestError

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A working folder with files that an unquoted pattern matches."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("a.py", "b.py", "c.py", "layer3.txt"):
        (folder / name).write_text("")
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(PNG)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("capture --layer a.py b.py c.py", "--layer takes one value, and 3 files follow it"),
        ("capture resnet18 -l a.py b.py", "-l takes one value, and 2 files follow it: a.py, b.py."),
        ("tree --layer a.py b.py", "--layer takes one value, and 2 files follow it: a.py, b.py."),
        ("capture --input a.png b.png", "--input takes one value, and 2 files follow it"),
        ("grads -i a.png b.png resnet18", "-i takes one value, and 2 files follow it"),
    ],
)
def test_a_pattern_that_the_shell_expanded_is_an_error_that_says_to_quote_it(
    run, files, arguments, message
) -> None:
    done = run(*arguments.split())
    assert (done.rc, done.stdout) == (2, "")
    error, hint, *_ = done.stderr.splitlines()
    assert error.startswith(f"Error: {message}")
    assert hint.startswith("Put a pattern in quotes, so that the shell does not expand it: -")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("capture -o a.safetensors a.py b.png", "b.png"),
        ("capture --output a.safetensors a.py b.py", "b.py"),
        ("grads --target b.py a.py b.png", "b.png"),
    ],
)
def test_a_file_after_an_option_that_cannot_be_repeated_is_an_extra_argument(
    refused, files, arguments, extra
) -> None:
    (files / "a.safetensors").write_bytes(b"")
    said = refused(*arguments.split())
    assert said.startswith(f"Error: Got unexpected extra argument: {extra}.\n")
    assert "takes one value" not in said
    assert "--input" in said.splitlines()[1]


def test_other_extra_arguments_that_are_files_get_the_hint_too(run, files) -> None:
    done = run("tree", *sorted(path.name for path in files.iterdir()))
    assert done.rc == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "Error: Got unexpected extra arguments: a.py, b.png, b.py and 2 more."
    assert "put it in quotes" in lines[1]
    assert run("tree", "vgg11", "extra").stderr.startswith(
        "Error: Got unexpected extra argument (extra)."
    )


def test_an_image_without_its_option_gets_the_option(run, files) -> None:
    done = run("capture", "vgg11", "a.png")
    assert done.rc == 2
    assert done.stderr.splitlines()[:2] == [
        "Error: Got unexpected extra argument: a.png.",
        "a.png is an image. Give an input with --input a.png",
    ]
    hint = "Give an input with --input a.png and repeat --input for each."
    assert hint in run("cam", "vgg11", "a.png", "b.png").stderr


@pytest.mark.slow
@pytest.mark.parametrize("annotation", ["", ": int "], ids=["text", "annotated"])
def test_several_arguments_of_a_model_in_one_option_are_parted(run, files, annotation) -> None:
    (files / "net.py").write_text(MODEL.replace("num_classes=", f"num_classes{annotation}="))
    done = run("tree", "net.py:Net", "--model-arg", "num_classes=5,width=8")
    advice = "Repeat --model-arg for each argument: --model-arg num_classes=5 --model-arg width=8"
    assert done.rc == 2
    assert advice in done.stderr and "Check the arguments" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "--layer fc a.py",
        "--layer layer3.txt a.py",
        "--layer a.py vgg11",
        "--layer conv1 --input a.png",
    ],
)
def test_a_file_beside_a_layer_may_be_the_model(parse, arguments) -> None:
    for name in ("a.py", "fc", "layer3.txt"):
        Path(name).write_text("")
    Path("a.png").write_bytes(PNG)
    assert parse("capture", *arguments.split()).params["layers"]


@pytest.mark.parametrize(
    ("arguments", "choice"),
    [
        ("grads --loss crossentropy", "ce"),
        ("grads --loss Cross-Entropy", "ce"),
        ("grads --loss KLDivLoss", "kl"),
        ("grads --loss smoothl1", "smooth_l1"),
        ("cam --by grad-cam", "gradcam"),
        ("cam --by grad_cam++", "gradcam++"),
        ("cam --by integrated-gradients", "integrated"),
        ("capture --device gpu", "cuda"),
        ("diff --device gpu a b", "cuda"),
        ("capture --dtype fp16", "float16"),
        ("grads --hook a.py:f --hook-kind full_backward", "backward"),
        ("grads --hook a.py:f --hook-kind full_backward_pre", "backward_pre"),
    ],
)
def test_another_name_of_a_choice_is_answered_with_ours(refused, arguments, choice) -> None:
    said = refused(*arguments.split())
    assert said.splitlines()[0].endswith(f" Did you mean {choice}?")


def test_the_library_suggests_the_same_names() -> None:
    from hookscope.specs.losses import check_loss_name

    for call, choice in (
        (lambda: check_loss_name("crossentropy"), "ce"),
        (lambda: hookscope.cam.checked(by="grad-cam"), "gradcam"),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert f"Did you mean {choice}?" in str(caught.value)


@pytest.mark.parametrize("model", ["resnet50", "net.py:Net", "net.pt2"])
def test_filters_of_a_model_without_a_layer_says_that_the_layer_is_missing(refused, model) -> None:
    said = refused("filters", model)
    assert said.splitlines() == [
        f"Error: No layer of {model} is given.",
        f"Add one: hookscope filters {model} LAYER. 'hookscope tree {model} --leaves' lists the"
        " layers.",
    ]


@pytest.mark.parametrize("command", ["plot", "show", "report"])
def test_an_image_is_not_a_result_file(refused, files, command) -> None:
    said = refused(command, "a.png")
    assert said.splitlines() == [
        "Error: a.png is an image, not a result file.",
        "Write one first: hookscope capture --input a.png",
    ]


def test_a_model_file_is_not_a_result_file(run, repo: Path) -> None:
    model = repo / "sample_models" / "digits_scripted.pt"
    done = run("show", model)
    assert done.rc == 2
    assert done.stderr.splitlines() == [
        f"Error: {model} is a TorchScript archive, not a result file.",
        f"Write one first: hookscope capture {model}",
    ]


MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.fc = nn.Linear(3, num_classes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("annotation", ["", ": int "], ids=["text", "annotated"])
def test_a_wrong_argument_of_a_model_is_named(run, files, annotation) -> None:
    (files / "net.py").write_text(MODEL.replace("num_classes=", f"num_classes{annotation}="))
    done = run("tree", "net.py:Net", "--model-arg", "num_classes=ten")
    assert (done.rc, done.stdout) == (2, "")
    if annotation:
        assert "num_classes" in done.stderr.splitlines()[0]
    else:
        assert done.stderr.startswith("Error: net.py, line 7, raised TypeError: ")
        hint = "Net was called with num_classes='ten'. Check the arguments. HOOKSCOPE_DEBUG=1"
        assert done.stderr.splitlines()[1].startswith(hint)
