"""What ``hookscope.diff`` of two files of weights is measured against: a loop over their tensors.

``weights_by_hand.py FILE FILE``. The sums are those of float32, of which a cosine near 1 keeps few
digits; hookscope takes them in float64.
"""

import sys

import numpy as np
from safetensors import safe_open

rows = []
with safe_open(sys.argv[1], "numpy") as old, safe_open(sys.argv[2], "numpy") as new:
    for name in old.keys():  # noqa: SIM118 - not a mapping
        a, b = old.get_tensor(name).ravel(), new.get_tensor(name).ravel()
        gap = a - b
        norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
        cosine = np.dot(a, b) / (norm_a * norm_b)
        largest, share = np.abs(gap).max(), np.mean(a != b)
        rows.append((np.linalg.norm(gap) / norm_a, name, cosine, norm_b, largest, share))
for row in sorted(rows, reverse=True):
    print(*row)
