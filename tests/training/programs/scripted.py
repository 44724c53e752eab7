# A scripted file, opened and called.
import tempfile
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)
with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), file.name)
    loaded = torch.jit.load(file.name)
with torch.no_grad():
    for _ in range(2):
        print(loaded(torch.randn(1, 4)).tolist())
