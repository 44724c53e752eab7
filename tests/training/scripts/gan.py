# A generator and a discriminator, each with an optimizer.
import torch
from reproducible import print_result, seed_all
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, points):
        return self.main(points)


seed_all(7)
net_g, net_d = Generator(), Discriminator()
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
real, fake = torch.ones(8, 1), torch.zeros(8, 1)
losses = []
for _ in range(10):
    points = torch.randn(8, 2) * 0.1 + 1
    net_d.zero_grad()
    err_real = criterion(net_d(points), real)
    err_real.backward()
    generated = net_g(torch.randn(8, 4))
    err_fake = criterion(net_d(generated.detach()), fake)
    err_fake.backward()
    optimizer_d.step()

    net_g.zero_grad()
    err_g = criterion(net_d(generated), real)
    err_g.backward()
    optimizer_g.step()
    losses += [err_real.item() + err_fake.item(), err_g.item()]
print_result(losses, net_g, net_d)
