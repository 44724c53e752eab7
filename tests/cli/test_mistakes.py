"""Mistakes on the command line: unquoted patterns, other names of a choice, a missing layer."""

from __future__ import annotations

from pathlib import Path

import pytest

import hookscope
from hookscope.errors import RequestError

PNG = b"\x89PNG\r\n\x1a\n"


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


def test_the_library_suggests_the_same_names() -> None:
    from hookscope.specs.losses import check_loss_name

    for call, choice in (
        (lambda: check_loss_name("crossentropy"), "ce"),
        (lambda: hookscope.cam.checked(by="grad-cam"), "gradcam"),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert f"Did you mean {choice}?" in str(caught.value)


MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.fc = nn.Linear(3, num_classes)
"""
