# Fit a polynomial with a small network.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(0)
x = torch.linspace(-1, 1, 64).unsqueeze(1)
y = x**3 - x

model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

losses = []
for _ in range(12):
    pred = model(x)
    loss = loss_fn(pred, y)
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print_result(losses, model)
