"""Trains for six steps, with a checkpoint after three; with an argument, goes on from that.

The argument names what is not restored as it should be: ``nothing``, ``weights``, ``optimizer``,
``scheduler``, ``generator`` or ``loader``.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fault = sys.argv[1] if len(sys.argv) > 1 else None
order = torch.Generator()
if not fault:
    torch.manual_seed(0)
    order.manual_seed(0)
x = torch.linspace(-1, 1, 48).reshape(12, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = DataLoader(TensorDataset(x, x[:, :1]), 4, shuffle=True, generator=order)
if fault:
    saved = torch.load("checkpoint.pt")
    weights = saved["model"]
    if fault == "weights":
        weights = {name: weight.half() for name, weight in weights.items()}
    model.load_state_dict(weights)
    if fault != "optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if fault != "scheduler":
        scheduler.load_state_dict(saved["scheduler"])
    if fault != "generator":
        torch.set_rng_state(saved["generator"])
        order.set_state(saved["order"])
    if fault == "loader":
        order.manual_seed(0)

for epoch in (1,) if fault else (0, 1):
    for batch, target in loader:
        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if epoch == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "order": order.get_state(),
        }
        torch.save(state, "checkpoint.pt")
