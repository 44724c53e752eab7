# A diffusion loop with guidance: a pipeline object with three parts.
import argparse

import torch
from torch import nn


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Linear(1, 8)
        self.down_block = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.SiLU())
        self.mid_block = nn.Conv2d(16, 16, 3, padding=1)
        self.context = nn.Linear(12, 16)
        self.up_block = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv_out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, sample, timestep, context):
        first = self.conv_in(sample) + self.time(timestep.view(-1, 1))[:, :, None, None]
        hidden = self.down_block(first) + self.context(context)[:, :, None, None]
        hidden = self.up_block(self.mid_block(hidden))
        return self.conv_out(torch.cat([hidden, first], 1))


class Pipeline:
    def __init__(self):
        self.text_encoder = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 12))
        self.unet = TinyUNet()
        self.vae = nn.Conv2d(3, 3, 1)

    @torch.no_grad()
    def __call__(self, tokens, steps, scale=4.0):
        context = self.text_encoder(torch.stack([tokens, torch.zeros_like(tokens)])).mean(1)
        sample = torch.randn(1, 3, 16, 16)
        for step in range(steps, 0, -1):
            time = torch.full((2,), step / steps)
            noise, free = self.unet(sample.repeat(2, 1, 1, 1), time, context).chunk(2)
            sample = sample - (free + scale * (noise - free)) / steps
        return self.vae(sample)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()
torch.manual_seed(0)
pipe = Pipeline()
print(pipe(torch.tensor([3, 7, 1]), args.steps).flatten()[:5].tolist())
