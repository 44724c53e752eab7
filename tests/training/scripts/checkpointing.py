# Activations are computed again in the backward pass, with the same dropout.
import sys

import torch
from reproducible import print_result, seed_all
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.fc = nn.Linear(size, size)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.fc(self.norm(x))))


class Net(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem = nn.Linear(3, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.head = nn.Linear(8, 2)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


seed_all(10)
model = Net("reentrant" in sys.argv)
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(6):
    loss = model(torch.randn(8, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
