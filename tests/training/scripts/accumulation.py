# Gradients of four small batches are added up, then clipped.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(6)
accumulate = 4
model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 16), nn.ReLU())
head = nn.Linear(16, 20)
optimizer = torch.optim.SGD(
    [{"params": model.parameters(), "lr": 0.5}, {"params": head.parameters()}], lr=0.1
)
losses, norms = [], []
for i in range(20):
    tokens = torch.randint(0, 20, (8, 5))
    loss = nn.functional.cross_entropy(head(model(tokens)), tokens[:, 0]) / accumulate
    loss.backward()
    losses.append(loss.item())
    if (i + 1) % accumulate == 0:
        weights = [*model.parameters(), *head.parameters()]
        norms.append(nn.utils.clip_grad_norm_(weights, max_norm=0.2).item())
        optimizer.step()
        optimizer.zero_grad()
print_result([*losses, *norms], model, head)
