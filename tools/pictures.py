"""Draws the pictures of the documents, with the commands that stand beside them.

``python -m tools.pictures`` writes ``docs/images/``. The bytes depend on matplotlib's version, so
nothing is compared.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torchvision

import hookscope
from hookscope.views.display import write_analysis

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "sample_models/five.safetensors"
DPI = "90"  # small files

PICTURES = {
    "maps": ["plot", SAMPLE, "relu1", "--by", "strength", "--count", "8"],
    "hist": ["plot", SAMPLE, "conv1", "conv2", "--kind", "hist"],
    "filters": ["filters", "sample_models/digits.py:trained", "conv1", "--dark"],
}
HEAT = ["cam", "sample_models/digits.py:trained", "--input", "sample_models/five.png"]
GRADIENTS = ["grads", "sample_models/digits.py:trained", "--input", "sample_models/five.png"]


def draw(*words: str) -> None:
    """Run one command of hookscope in the project's folder."""
    subprocess.run([sys.executable, "-m", "hookscope", *words, "-q"], cwd=ROOT, check=True)


def draw_errors(file: Path) -> None:
    """Draw the errors of the port with a fault in docs/diff.md."""
    torch.manual_seed(0)
    reference = torchvision.models.resnet18().eval()
    port = torchvision.models.resnet18().eval()
    port.load_state_dict(reference.state_dict())
    port.layer2[1].bn1.eps = 1e-3
    found = hookscope.diff(reference, port, shape=(1, 3, 64, 64), floor="float64")
    write_analysis(found, file, int(DPI))


def main() -> None:
    """Write every picture."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    for name, words in PICTURES.items():
        draw(*words, "--dpi", DPI, "-o", str(folder / f"{name}.png"))
    draw(*HEAT, "--by", "hirescam", "-o", str(folder / "cam.png"))
    (folder / "cam.safetensors").unlink()
    capture = folder / "digits.grads.safetensors"
    draw(*GRADIENTS, "--target", "3", "-o", str(capture))
    draw("plot", str(capture), "--dpi", DPI, "-o", str(folder / "flow.png"))
    capture.unlink()
    draw_errors(folder / "errors.png")


if __name__ == "__main__":
    main()
