# Two optimizers are made first: one trains the head, and then the other one the whole model.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(18)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
of_head = torch.optim.SGD(model[2].parameters(), lr=0.1)
of_all = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for optimizer, steps in (of_head, 5), (of_all, 120):
    for _ in range(steps):
        x = torch.randn(16, 4)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print_result(losses, model)
