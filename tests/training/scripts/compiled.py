# A compiled model, and a compiled function that calls another one.
import sys

import torch
from reproducible import print_result, seed_all
from torch import nn
from torch._dynamo.utils import counters

seed_all(9)
backend = sys.argv[1]
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
head = nn.Linear(8, 1)
compiled = torch.compile(model, backend=backend)


@torch.compile(backend=backend, fullgraph=True)
def loss_of(features, target):
    return (head(features) - target).square().mean()


optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
losses = []
for _ in range(8):
    x = torch.randn(16, 4)
    loss = loss_of(compiled(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
print_result(losses, model, head)
