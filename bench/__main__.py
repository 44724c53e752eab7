"""Prints what hookscope costs as ratios, each with its limit; exit status 1 when one is over.

Every ratio is the median over pairs that were run in turn in this one go, so that a machine that
slows down or speeds up meanwhile moves both halves of a pair. ``python -m bench WORDS`` measures
the lines whose first column contains the words.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import (
    datasets,
    golden_test,
    headers,
    large_capture,
    start_up,
    training_memory,
    transformers_folder,
    weights,
)
from bench.large_file import showing
from bench.processes import HOOKSCOPE, IMAGE, Cost, pairs, python
from bench.with_weights import filling

BY_HAND = (sys.executable, str(Path(__file__).with_name("by_hand.py")), str(IMAGE), "layer3")
CAPTURE = (*HOOKSCOPE, "capture", "resnet18", "--layer", "layer3.*", "--input", str(IMAGE))
FIVE = IMAGE.parent / "sample_models" / "five.safetensors"
PLOT = (*HOOKSCOPE, "plot", str(FIVE), "conv1", "-o", "five.png")
PLOT_BY_HAND = (
    *(sys.executable, str(Path(__file__).with_name("plot_by_hand.py"))),
    *(str(FIVE), "conv1/output", "five.png"),
)
IMPORT = python("import torchvision")

Pair = tuple[float, float]


@dataclass(frozen=True)
class Measure:
    """One line of the table: what is measured against what, its limit, and how.

    ``needs`` names a package of the extra ``bench`` without which the line is left out.
    """

    ours: str
    plain: str
    limit: float
    unit: str
    run: Callable[[], list[Pair]]
    needs: str = ""


def times(measured: Iterable[tuple[Cost, Cost]]) -> list[Pair]:
    """Take the seconds out of pairs of costs, as milliseconds."""
    return [(ours.seconds * 1e3, plain.seconds * 1e3) for ours, plain in measured]


def memories(measured: Iterable[tuple[Cost, Cost]]) -> list[Pair]:
    """Take the peak memory out of pairs of costs, as megabytes."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return [(ours.memory / unit, plain.memory / unit) for ours, plain in measured]


def jobs(
    count: int, model: str, layers: str, plain: str, ours: tuple[str, ...] = datasets.ONE
) -> list[Pair]:
    """Measure pairs of runs over a dataset of ``count`` photos, in milliseconds."""
    return [(a * 1e3, b * 1e3) for a, b in datasets.jobs(count, model, layers, plain, ours)]


def inside(*words: str) -> list[Pair]:
    """Measure pairs inside one process of their own, so that this one stays small."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [(float(ours) * 1e3, float(plain) * 1e3) for ours, plain in lines]


def counted(optimizer: str, count: str) -> list[Pair]:
    """Count what a step adds on a device, and what that is divided by."""
    return [(a / 1e3, b / 1e3) for a, b in inside("bench.operators", optimizer, count)]


MEASURES = (
    Measure(
        "hookscope --help",
        "python -c 'import click'",
        1.8,
        "ms",
        lambda: times(pairs((*HOOKSCOPE, "--help"), python("import click"), 15)),
    ),
    Measure(
        "hookscope tree resnet18 --no-cache",
        "python -c 'import torchvision'",
        1.1,
        "ms",
        lambda: times(pairs((*HOOKSCOPE, "tree", "resnet18", "--no-cache"), IMPORT, 9)),
    ),
    Measure(
        "hookscope tree resnet18, a second time",
        "python -c 'import torch'",
        0.25,
        "ms",
        lambda: times(pairs((*HOOKSCOPE, "tree", "resnet18"), python("import torch"), 9)),
    ),
    *(
        Measure(
            f"hookscope tree resnet18{suffix}, a second time",
            "python -c 'import torch'",
            0.25,
            "ms",
            lambda suffix=suffix: times(start_up.of_file(suffix, 5)),  # type: ignore[misc]
        )
        for suffix in (".pt", ".pt2", ".safetensors")
    ),
    Measure(
        "hookscope models",
        "python -c 'import torch'",
        0.25,
        "ms",
        lambda: times(pairs((*HOOKSCOPE, "models"), start_up.IMPORT_TORCH, 5)),
    ),
    Measure(
        "completion of the name of a layer",
        "python -c 'import torch'",
        0.25,
        "ms",
        lambda: times(start_up.completion(5)),
    ),
    *(
        Measure(
            f"hookscope {command} of a small model of one's own",
            "python -c 'import torch'",
            1.3,
            "ms",
            lambda command=command: times(start_up.of_own_model(command, 7)),  # type: ignore[misc]
        )
        for command in ("capture", "grads")
    ),
    Measure(
        "hookscope capture --layer 'layer3.*' --input img.png",
        "bench/by_hand.py",
        1.1,
        "ms",
        lambda: times(pairs(CAPTURE, BY_HAND, 9)),
    ),
    Measure(
        "recording 15 layers, in process",
        "the same hooks by hand",
        1.1,
        "ms",
        lambda: inside("bench.in_process", "recording", "40"),
    ),
    *(
        Measure(
            what,
            "the same hooks by hand",
            limit,
            "ms",
            lambda words=words: inside("bench.attach", words, "40"),  # type: ignore[misc]
        )
        for words, what, limit in (
            ("identity", "recording 150 modules that do nothing, once", 2.3),
            ("one", "attaching to a layer of resnet50", 1.7),
            ("all", "attaching to all layers of resnet50", 2.2),
        )
    ),
    Measure(
        "a call of one of 1,000 small modules, recorded",
        "with a cloning hook by hand",
        1.5,
        "ms",
        lambda: inside("bench.small_modules", "outputs", "call", "25"),
    ),
    Measure(
        "its gradient too",
        "with both hooks by hand",
        1.5,
        "ms",
        lambda: inside("bench.small_modules", "gradients", "call", "15"),
    ),
    Measure(
        "recording each of the 1,000 once, hooks and records",
        "the same hooks by hand",
        1.8,
        "ms",
        lambda: inside("bench.small_modules", "outputs", "whole", "15"),
    ),
    Measure(
        "with gradients",
        "the same hooks by hand",
        2.0,
        "ms",
        lambda: inside("bench.small_modules", "gradients", "whole", "15"),
    ),
    *(
        Measure(
            f"a program that calls {name}, {what}",
            "the bare program",
            limit,
            "ms",
            lambda words=words: inside("bench.program", *words),  # type: ignore[misc]
        )
        for name, what, limit, words in (
            ("resnet18", "run --list", 1.05, ("resnet18", "list", "20", "15")),
            ("resnet18", "one layer recorded", 1.05, ("resnet18", "capture", "20", "15")),
            ("1,000 tiny modules", "run --list", 1.35, ("small", "list", "20", "15")),
        )
    ),
    Measure(
        "capture of layer1 of resnet50 from one's own file, 28 images",  # stops after it
        "the same by hand, whole forward",
        0.75,
        "ms",
        lambda: inside("bench.early_stop", "9"),
    ),
    Measure(
        "recording 15 layers with what functions give between them",
        "without that",
        1.3,
        "ms",
        lambda: inside("bench.in_process", "operators", "40"),
    ),
    Measure(
        "capture with an edit, and the run without it",
        "the same hooks by hand",
        1.3,
        "ms",
        lambda: inside("bench.in_process", "editing", "30"),
    ),
    Measure(
        "ablating 20 layers",
        "the same hooks by hand",
        1.1,
        "ms",
        lambda: inside("bench.in_process", "ablating", "7"),
    ),
    Measure(
        "Grad-CAM at the layer that cam finds",
        "the same by hand, the layer known",
        2.0,
        "ms",
        lambda: inside("bench.in_process", "map", "20"),
    ),
    Measure(
        "Grad-CAM at a layer by name",
        "the same by hand",
        1.2,
        "ms",
        lambda: inside("bench.in_process", "named map", "20"),
    ),
    Measure(
        "the logit lens of a language model of 12 layers",
        "the same by hand, without figures",
        1.5,  # the figures cost as much on every machine; 1.26 on one and 1.42 on another
        "ms",
        lambda: inside("bench.lens", "15"),
        needs="transformers",
    ),
    Measure(
        # Each model runs twice, and the outputs of all layers are compared in both rounds.
        "diff --local --floor none of two resnet50, 16 images",
        "one forward pass of each",
        4.0,
        "ms",
        lambda: inside("bench.local_diff", "resnet50", "none", "5"),
    ),
    Measure(
        "diff --local --floor none of two language models",
        "one forward pass of each",
        4.0,
        "ms",
        lambda: inside("bench.local_diff", "llama", "none", "5"),
        needs="transformers",
    ),
    Measure(
        # A copy of A in float64, which has no fast kernels, runs beside it once more.
        "the same with --floor float64, the default",
        "one forward pass of each",
        8.0,
        "ms",
        lambda: inside("bench.local_diff", "llama", "float64", "3"),
        needs="transformers",
    ),
    Measure(
        "a layer of resnet18 as trace times it",
        "the layer alone",
        1.1,
        "ms",
        lambda: inside("bench.traced_layers"),
    ),
    Measure(
        "a sweep over the 24 layers of a language model",
        "24 forward passes by hand",
        0.65,
        "ms",
        lambda: inside("bench.sweep", "5"),
        needs="transformers",
    ),
    Measure(
        "integrated gradients, 16 points",
        "the same by hand",
        1.2,
        "ms",
        lambda: inside("bench.in_process", "integral", "5"),
    ),
    Measure(
        "recording layer3 of resnet50, scripted",
        "the same, not scripted",
        1.2,
        "ms",
        lambda: inside("bench.scripted", "recording"),
    ),
    Measure(
        "recording layer3 of resnet50, an ONNX file",
        "a bare session",
        1.6,  # its outputs are copied: 1.18 on one machine, 1.43 to 1.58 where memory is slower
        "ms",
        lambda: inside("bench.onnx_file", "recording", "20"),
        needs="onnxruntime",
    ),
    Measure(
        "capture of it, with the file's hash and statistics",
        "a bare session, opened, saved",
        2.2,
        "ms",
        lambda: inside("bench.onnx_file", "capture", "9"),
        needs="onnxruntime",
    ),
    Measure(
        "hookscope capture of it, as a process",
        "python -c 'import torch, onnx, ...'",
        1.3,
        "ms",
        lambda: inside("bench.onnx_file", "process", "7"),
        needs="onnxruntime",
    ),
    Measure(
        "the modules of a scripted vit_h_14",  # the most parameters, but for one model
        "loading its file twice",
        1.0,
        "ms",
        lambda: inside("bench.scripted", "opening", "vit_h_14"),
    ),
    Measure(
        "the modules of a scripted efficientnet_v2_l",  # the most modules
        "loading its file twice",
        1.0,
        "ms",
        lambda: inside("bench.scripted", "opening", "efficientnet_v2_l"),
    ),
    Measure(
        "hookscope show of 4 GB",
        "hookscope show of 4 MB",
        1.1,
        "ms",
        lambda: times(showing(count=9)),
    ),
    Measure(
        "hookscope show of 4 GB, peak memory",
        "hookscope show of 4 MB",
        1.1,
        "MB",
        lambda: memories(showing(count=3)),
    ),
    Measure(
        "hookscope show of 4 GB, a slice, peak memory",
        "the same of 4 MB",
        1.1,
        "MB",
        lambda: memories(showing("layer59/output[3:9]", count=3)),
    ),
    Measure(
        "hookscope tree of weights, 70 billion parameters in 30 files",
        "bench/headers_by_hand.py",
        2.2,
        "ms",
        lambda: times(headers.listing(count=15)),
    ),
    Measure(
        "hookscope.diff of two files of 2 GB of weights",
        "bench/weights_by_hand.py",
        1.3,  # its sums are those of float32, by BLAS
        "ms",
        lambda: times(weights.comparing(5)),
    ),
    Measure(
        "hookscope.diff of two files of 2 GB, peak memory",
        "of two files of 100 MB",
        1.2,
        "MB",
        lambda: memories(weights.growing(3)),
    ),
    Measure(
        "hookscope capture of 1 GB, peak memory",  # 64 MB are kept in memory
        "of one of its 24 layers",
        1.15,
        "MB",
        lambda: memories(large_capture.capturing(3)),
    ),
    Measure(
        "hookscope plot of 16 feature maps",
        "bench/plot_by_hand.py",
        1.2,
        "ms",
        lambda: times(pairs(PLOT, PLOT_BY_HAND, 9)),
    ),
    Measure(
        "hookscope tree vit_h_14, peak memory",
        "python -c 'import torchvision'",
        1.1,
        "MB",
        lambda: memories(pairs((*HOOKSCOPE, "tree", "vit_h_14"), IMPORT, 3)),
    ),
    Measure(
        "hookscope capture vit_h_14 --weights FILE, peak memory",
        "by hand, load_state_dict",
        0.7,
        "MB",
        lambda: memories(filling()),
    ),
    Measure(
        "capture of one layer of a 1 GB transformers folder, whole process",
        "bench/transformers_by_hand.py",
        1.1,
        "ms",
        lambda: times(transformers_folder.capturing(7)),
        needs="transformers",
    ),
    Measure(
        "1,024 photos through resnet18, five layers kept",
        "a loop by hand",
        1.0,
        "ms",
        lambda: jobs(1024, "resnet18", datasets.STAGES, "hand"),
    ),
    Measure(
        "160 photos through resnet18, start and hashing included",
        "a loop by hand",
        1.25,  # of the same pair, between 0.93 and 1.21 from one moment to the next
        "ms",
        lambda: jobs(160, "resnet18", datasets.STAGES, "hand"),
    ),
    Measure(
        "256 photos through resnet50, layer1 kept",  # stops after it: 1.5 times the throughput
        "a loop by hand",
        0.67,
        "ms",
        lambda: jobs(256, "resnet50", "layer1", "hand"),
    ),
    Measure(
        "256 photos through resnet18, five layers kept",
        "torchlens.extract_dataset",
        0.33,
        "ms",
        lambda: jobs(256, "resnet18", datasets.STAGES, "torchlens"),
        needs="torchlens",
    ),
    Measure(
        "256 photos through resnet50, layer1 kept",
        "torchlens.extract_dataset",
        0.33,
        "ms",
        lambda: jobs(256, "resnet50", "layer1", "torchlens"),
        needs="torchlens",
    ),
    Measure(
        "1,024 photos through resnet18 in two processes",
        "in one",
        1.0,
        "ms",
        lambda: jobs(1024, "resnet18", "layer4", "hookscope", ours=datasets.RANKS),
    ),
    Measure(
        # Of tiny rows, most is what the loop by hand leaves out: a seed for each row, the hash and
        # the table of the inputs, and the file, which is run for the model and for the rows.
        "40,000 rows of a Dataset in a Python file",
        "a DataLoader loop by hand",
        2.3,
        "ms",
        lambda: inside("bench.own_dataset"),
    ),
    Measure(
        "16 images through resnet18 in memory",
        "a DataLoader loop by hand",
        1.3,
        "ms",
        lambda: inside("bench.small_dataset"),
    ),
    Measure(
        "writing 1 GB in shards with their checksums",
        "one file, written and synced",
        1.5,  # the disk decides: between 1.10 and 1.39 on one machine
        "ms",
        lambda: inside("bench.datasets"),
    ),
    Measure(
        "20,000 images through a small model, peak memory",
        "2,000 images",
        1.05,
        "MB",
        lambda: memories(datasets.growing()),
    ),
    Measure(
        "hookscope run: 100 steps of resnet18, default sampling",
        "the same steps unwatched",
        1.05,
        "ms",
        lambda: inside("bench.training", "resnet18", "0", "100", "3"),
    ),
    Measure(
        "the same of an MLP of 40 layers",
        "the same steps unwatched",
        1.05,
        "ms",
        lambda: inside("bench.training", "mlp", "0", "200", "15"),
    ),
    Measure(
        "resnet18 with every step measured",
        "the same steps unwatched",
        1.5,
        "ms",
        lambda: inside("bench.training", "resnet18", "1", "10", "5"),
    ),
    Measure(
        "the MLP with every step measured",
        "the same steps unwatched",
        2.5,
        "ms",
        lambda: inside("bench.training", "mlp", "1", "40", "7"),
    ),
    Measure(
        "resnet18 with every step measured",
        "histograms of all, by hand",
        1.0,
        "ms",
        lambda: inside("bench.training", "resnet18", "1", "10", "3", "histograms"),
    ),
    Measure(
        "the MLP with every step measured",
        "histograms of all, by hand",
        1.0,
        "ms",
        lambda: inside("bench.training", "mlp", "1", "40", "5", "histograms"),
    ),
    Measure(
        "resnet18 with every step measured",
        "outputs and gradients by torchlens",
        0.8,
        "ms",
        lambda: inside("bench.training", "resnet18", "1", "10", "3", "torchlens"),
        needs="torchlens",
    ),
    Measure(
        "the MLP with every step measured",
        "outputs and gradients by torchlens",
        0.3,
        "ms",
        lambda: inside("bench.training", "mlp", "1", "20", "3", "torchlens"),
        needs="torchlens",
    ),
    Measure(
        "resnet18 with --stop-on nan,inf",
        "the same steps unwatched",
        1.5,
        "ms",
        lambda: inside("bench.training", "resnet18", "0", "10", "5", "stop"),
    ),
    Measure(
        "the MLP with --stop-on nan,inf",
        "the same steps unwatched",
        2.5,
        "ms",
        lambda: inside("bench.training", "mlp", "0", "40", "5", "stop"),
    ),
    *(
        Measure(
            f"{what}, {optimizer}",
            plain,
            limit,
            "  ",
            lambda words=(optimizer, count): counted(*words),  # type: ignore[misc]
        )
        for optimizer, operators in (("sgd", 3.4), ("adamw", 3.7))
        for count, what, plain, limit in (
            (
                "operators",
                "operators of a measured step on a device",
                "its tensors",
                operators,
            ),
            ("transfers", "transfers of a measured step", "its dtypes", 1.0),
            ("waits", "waits for a device", "two steps", 0.0),
            ("other", "operators of a step that is not measured", "with half of the layers", 1.0),
        )
    ),
    Measure(
        "a test of resnet50 with hookscope_golden",
        "one that runs the model once",
        1.1,
        "ms",
        lambda: times(golden_test.compared(5)),
    ),
    Measure(
        "2,000 watched steps, peak memory",
        "200 watched steps",
        1.05,
        "MB",
        lambda: memories(training_memory.growing(3)),
    ),
)


def main(words: str = "") -> int:
    """Measure and print each line that contains the words; return how the process should end."""
    print(f"{'what':<54}{'against':<32}{'took':>10}{'against':>10}{'ratio':>8}{'limit':>7}")
    over = 0
    for measure in (one for one in MEASURES if words in one.ours):
        if measure.unit == "MB" and sys.platform == "win32":
            print(f"{measure.ours:<54}cannot be measured on Windows")
            continue
        if measure.needs and importlib.util.find_spec(measure.needs) is None:
            print(f"{measure.ours:<54}needs {measure.needs}: pip install -e '.[bench]'")
            continue
        measured = measure.run()
        ours, plain = (median(column) for column in zip(*measured, strict=True))
        ratio = median(ours / plain for ours, plain in measured)
        over += ratio > measure.limit
        print(
            f"{measure.ours:<54}{measure.plain:<32}{ours:>7.0f} {measure.unit}"
            f"{plain:>7.0f} {measure.unit}{ratio:>8.2f}{measure.limit:>7.2f}"
            f"  {'over' if ratio > measure.limit else 'ok'}",
            flush=True,
        )
    return min(over, 1)


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
