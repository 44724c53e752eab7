# Mixed precision with bfloat16, which needs no scaling of the loss.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(4)
model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
losses = []
for _ in range(8):
    x, y = torch.randn(16, 12), torch.randint(0, 3, (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
print(logits.dtype, scheduler.get_last_lr())
print_result(losses, model)
