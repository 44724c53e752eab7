# One optimizer for each parameter, which steps as soon as the gradient is there.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(14)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1))
optimizers = {p: torch.optim.Adam([p], lr=1e-2, foreach=False) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)

losses = []
for _ in range(6):
    x = torch.randn(8, 5)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    losses.append(loss.item())
print_result(losses, model)
