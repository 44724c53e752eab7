"""An invalid request is an error before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs_list

PROBE = """
import sys
from hookscope.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("LOADED", *sorted({"torch", "numpy", "rich", "PIL"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param("tree resnet17", "There is no model called 'resnet17'.", marks=needs_list),
        ("capture --weights nope.pth", "There is no weights file 'nope.pth'."),
        pytest.param(
            "capture --weights IMAGENET1K_V9",
            "There are no weights called 'IMAGENET1K_V9'.",
            marks=needs_list,
        ),
        ("capture --mean 1", "--mean is for images, and no image is given."),
        ("capture --preprocess imagenet", "--preprocess is for images, and no image is given."),
        ("capture --std 0,0,0", "--std: '0,0,0' contains 0"),
        ("capture --layer=", "A layer pattern is empty."),
        ("tree --layer {a", "has an unbalanced brace"),
        ("capture --input ids=nope.npy", "There is no file 'nope.npy'."),
        ("capture --input random:3xx", "'3xx' is not a valid shape."),
        ("capture --input ones:2 --mean 1", "--mean is for images, and no image is given."),
        ("capture --input text.npy", "is a text file, not an array saved by numpy (.npy)."),
        ("capture --input text.png", "'text.png' is not an image: it looks like a text file."),
        ("grads --target nope.npy", "There is no target file 'nope.npy'."),
        ("grads --loss norm --reduction mean", "The loss norm is one number"),
    ],
)
def test_refused_without_torch(
    clean_environment: dict[str, str], tmp_path: Path, arguments: str, message: str
) -> None:
    for name in ("text.png", "text.npy"):
        (tmp_path / name).write_text("This is no image.\n")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments.split()],
        env=clean_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "LOADED"
