# A compiled model, and one that is not.
import sys

import torch
from torch import nn

torch.manual_seed(0)
features = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4))
head = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=-1))
fast = torch.compile(features, backend=sys.argv[1])
with torch.no_grad():
    for _ in range(3):
        print(head(fast(torch.randn(2, 6))).tolist())
