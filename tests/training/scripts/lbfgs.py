# LBFGS evaluates the model several times in each step.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(8)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
x = torch.randn(20, 3, dtype=torch.double)
y = x.prod(1, keepdim=True)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=5)
losses = []


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    losses.append(loss.item())
    loss.backward()
    return loss


for i in range(5):
    print("STEP", i, optimizer.step(closure).item())
print_result(losses, model)
