"""What ``tree`` of weights is measured against: the same by hand. ``headers_by_hand.py FOLDER``."""

import json
import re
import sys
from collections import Counter
from math import prod
from pathlib import Path

from safetensors import safe_open

folder = Path(sys.argv[1])
index = json.loads((folder / "model.safetensors.index.json").read_text())
tensors = {}
for file in sorted(set(index["weight_map"].values())):
    with safe_open(folder / file, framework="numpy") as opened:
        for name in opened.keys():  # noqa: SIM118
            part = opened.get_slice(name)
            tensors[name] = (part.get_dtype(), part.get_shape())
parameters: Counter[str] = Counter()
dtypes: Counter[str] = Counter()
rows: dict[str, tuple[str, str]] = {}
for name in sorted(
    tensors, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)]
):
    dtype, shape = tensors[name]
    dtypes[dtype] += prod(shape)
    parts = name.split(".")
    for depth in range(len(parts) + 1):
        branch = ".".join(parts[:depth])
        parameters[branch] += prod(shape)
        rows.setdefault(branch, (dtype, ""))
    rows[name] = (dtype, "x".join(map(str, shape)))
width = max(map(len, rows))
for name, (dtype, shape_text) in rows.items():
    count = parameters[name]
    print(f"{name:<{width}}  {dtype:>5}  {shape_text:>12}  {count:>14}  {2 * count:>14}")
for dtype, count in dtypes.items():
    print(f"{dtype}: {count:,} parameters")
