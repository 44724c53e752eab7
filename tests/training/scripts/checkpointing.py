# Activations are computed again in the backward pass, with the same dropout.
import sys

import torch
from reproducible import print_result, seed_all
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        block = (nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2))
        self.blocks = nn.ModuleList([nn.Sequential(*block) for _ in range(3)])

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant="reentrant" in sys.argv)
        return self.head(x)


seed_all(10)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(6):
    loss = model(torch.randn(8, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
