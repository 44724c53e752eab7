# Gradient descent written out, without an optimizer.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(13)
model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 3))
lr = 0.5
losses = []
for _ in range(10):
    xb, yb = torch.randn(12, 4), torch.randint(0, 3, (12,))
    loss = nn.functional.cross_entropy(model(xb), yb)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad * lr
        model.zero_grad()
    losses.append(loss.item())
print_result(losses, model)
