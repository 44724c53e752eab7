# A loss network is made after the optimizer, within an object that is not a module.
import torch
from reproducible import print_result, seed_all
from torch import nn


class PerceptualLoss:
    def __init__(self):
        self.network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()

    def __call__(self, output, target):
        return nn.functional.mse_loss(self.network(output), self.network(target))


seed_all(17)
model = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = PerceptualLoss()
losses = []
for _ in range(7):
    target = torch.randn(2, 1, 8, 8)
    loss = criterion(model(target + 0.1 * torch.randn_like(target)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
