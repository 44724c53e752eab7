# Parts that an object, a model or a function calls: guided diffusion, two encoders, a decoder
# that runs for each token, a branch that is held twice, a checkpoint in autocast.
import tempfile

import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.context = nn.Linear(1, 3), nn.Linear(12, 3)
        self.down_block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.SiLU())

    def forward(self, sample, timestep, context):
        first = sample + self.time(timestep.view(-1, 1))[:, :, None, None]
        return self.down_block(first) + self.context(context)[:, :, None, None]


class Pipeline:
    def __init__(self):
        self.text_encoder = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 12))
        self.unet, self.vae = UNet(), nn.Conv2d(3, 3, 1)

    def __call__(self, tokens, steps, scale=4.0):
        context = self.text_encoder(torch.stack([tokens, torch.zeros_like(tokens)])).mean(1)
        sample = torch.randn(1, 3, 8, 8)
        for step in range(steps, 0, -1):
            time = torch.full((2,), step / steps)
            noise, free = self.unet(sample.repeat(2, 1, 1, 1), time, context).chunk(2)
            sample = sample - (free + scale * (noise - free)) / steps
        return self.vae(sample)


class Clip(nn.Module):  # is not called itself
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 8))
        self.textual = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8))

    def encode_text(self, text):
        return nn.functional.normalize(self.textual(text).mean(1), dim=-1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(30, 12), nn.Linear(12, 30)
        self.gru = nn.GRUCell(12, 12)

    def step(self, token, state):
        return self(token, state)

    def forward(self, token, state=None):
        state = self.gru(self.embedding(token), state)
        return self.out(state), state


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.twin = self.branch

    def forward(self, one, other):
        return self.branch(one), self.twin(other)


def translate(encoder, decoder, tokens):
    (_, state), token, words = encoder(tokens), torch.ones(1, dtype=torch.long), []
    state = state[0]
    for _ in range(4):
        logits, state = decoder.step(token, state)
        token = logits.argmax(-1)
        words.append(token.item())
    return words


torch.manual_seed(0)
with torch.no_grad():
    pipe = Pipeline()
    print(pipe(torch.tensor([3, 7, 1]), 4).flatten()[:5].tolist())
    clip = Clip().eval()
    print(clip.visual(torch.rand(3, 3, 4, 4)) @ clip.encode_text(torch.ones(2, 5).long()).T)
    print(translate(nn.GRU(3, 12, batch_first=True), Decoder(), torch.rand(1, 3, 3)))
    siamese, distance = Siamese(), nn.PairwiseDistance()
    print(distance(*siamese(torch.randn(2, 8), torch.randn(2, 8))).tolist())
    net_g = nn.Sequential(nn.ConvTranspose2d(8, 3, 4), nn.BatchNorm2d(3), nn.Tanh()).eval()
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(net_g.state_dict(), file.name)
        net_g.load_state_dict(torch.load(file.name))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fake = net_g(torch.randn(2, 8, 1, 1))
        print(fake.dtype, fake.float().mean().item())
