# The loss is scaled, and a step with an infinite gradient is skipped.
import sys

import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(5)
fused, clips = "fused" in sys.argv, "clip" in sys.argv
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=fused)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
losses = []
for step in range(9):
    x = torch.randn(8, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    if step in (2, 6):
        loss = loss * 1e38
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if clips:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
    print(step, scaler.get_scale())
print_result(losses, model)
