# A generator and a discriminator, each with an optimizer.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(7)
net_g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
net_d = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
real, fake = torch.ones(8, 1), torch.zeros(8, 1)
losses = []
for _ in range(5):
    net_d.zero_grad()
    err_real = criterion(net_d(torch.randn(8, 2) * 0.1 + 1), real)
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
