# Samples of a generator, in float16 autocast, from a checkpoint that is loaded first.
import tempfile

import torch
from torch import nn


def build():
    return nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )


torch.manual_seed(0)
with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    torch.save(build().state_dict(), file.name)
    net_g = build()
    net_g.load_state_dict(torch.load(file.name))
net_g.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(3):
        fake = net_g(torch.randn(2, 8, 1, 1))
        print(fake.dtype, fake.float().mean().item())
