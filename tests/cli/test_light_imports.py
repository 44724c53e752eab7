"""What must be quick imports nothing heavy: neither torch nor numpy nor rich."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.conftest import needs_list
from tests.processes import run_python
from tests.properties.minimal_requests import REQUESTS, write_sources

HEAVY = {"torch", "torchvision", "numpy", "rich", "PIL", "safetensors"}
PROBE = """
import sys
from hookscope.cli.main import main
try:
    main(sys.argv[1:])
finally:
    heavy = set({heavy!r}) & set(sys.modules)
    print("LOADED", *sorted(heavy), file=sys.stderr)
"""


def loaded(clean_environment, folder: Path, *arguments: str, **env: str) -> set[str]:
    """What of HEAVY a run of the command has imported."""
    probe = PROBE.format(heavy=sorted(HEAVY))
    done = run_python("-c", probe, *arguments, cwd=folder, env=clean_environment | env)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["-h"],
        ["capture", "--help"],
        ["capture", "-h"],
        ["capture", "--layr", "x"],
        pytest.param(["capture", "resnt18"], marks=needs_list),
        ["capture", "--input", "missing.png"],
        ["capture", "--output", "no/such/folder/file"],
        ["capture", "--output", "."],
        ["capture", "--seed", "x"],
        ["capture", "--device-map", "auto", "--device", "cpu"],
        ["grads", "--loss", "nope"],
        ["tree", "missing.py:Net"],
        ["config"],
        ["config", "--json"],
        ["completion", "bash"],
        ["help", "grads"],
        ["help", "losses"],
        ["help", "edits"],
        ["help", "checks"],
        ["show", "missing"],
        ["export", "features/", "--output", "features.txt"],
        pytest.param(["diff", "resnet18", "resnt18"], marks=needs_list),
        ["diff", "resnet18", "resnet18", "--size", "8"],
        [],
    ],
    ids=" ".join,
)
def test_needs_nothing_heavy(clean_environment, tmp_path, arguments) -> None:
    assert loaded(clean_environment, tmp_path, *arguments) == set()


def test_a_folder_that_cannot_be_written_to_needs_nothing_heavy(
    clean_environment, tmp_path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    extract = ("extract", "--input", "photo.png", "--output")
    for words in (("full/",), ("photo.png/",), ("out/", "--resume", "--force")):
        assert loaded(clean_environment, tmp_path, *extract, *words) <= {"safetensors"}


def test_completion_needs_nothing_heavy(clean_environment, tmp_path) -> None:
    for words in ["hookscope tree res", "hookscope capture --layer l"]:
        answer = {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
        assert loaded(clean_environment, tmp_path, **answer) == set()


@needs_list
def test_listing_models_needs_no_torch(clean_environment, tmp_path) -> None:
    assert loaded(clean_environment, tmp_path, "models", "vgg*") <= {"rich"}
    assert loaded(clean_environment, tmp_path, "models", "vgg*", "--json") <= {"rich"}


OF_FILES = {"weights", "capture", "features", "run", "fingerprint"}


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(OF_FILES))
def test_questions_to_files_need_no_torch(clean_environment, tmp_path: Path, source: str) -> None:
    write_sources(tmp_path)
    lines = [[pair[0], *shlex.split(REQUESTS[pair])] for pair in REQUESTS if pair[1] == source]
    code = (
        "import sys\nfrom hookscope.cli.main import main\n"
        f"for words in {lines!r}:\n"
        "    try:\n        main(words)\n"
        "    except SystemExit as end:\n        assert end.code in (0, 1), words\n"
        "    assert not {'torch', 'torchvision'} & set(sys.modules), words\n"
    )
    run_python("-c", code, cwd=tmp_path, env=clean_environment, status=0)


@pytest.mark.slow
def test_the_probe_sees_what_is_heavy(clean_environment, tmp_path) -> None:
    assert {"torch", "rich"} <= loaded(clean_environment, tmp_path, "tree", "alexnet")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["capture", "grads"])
def test_a_model_of_ones_own_loads_neither_torchvision_nor_the_compiler(
    clean_environment, tmp_path: Path, command: str
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.conv, self.act = nn.Conv2d(3, 4, 3), nn.ReLU()\n\n"
        "    def forward(self, x):\n        return self.act(self.conv(x)).mean((2, 3))\n"
    )
    code = PROBE.replace("{heavy!r}", "{'torch._dynamo', 'torchvision', 'numpy'}")
    words = (command, "net.py:Net", "--shape", "1x3x8x8", "--no-output")
    done = run_python("-c", code, *words, cwd=tmp_path, env=clean_environment, status=0)
    assert "LOADED numpy" in done.stderr.splitlines()
