"""What the capture command is measured against: the same by hand. ``by_hand.py IMAGE FILE``."""

import sys

import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

torch.manual_seed(0)
model = torchvision.models.resnet18(weights=None).eval()
prepare = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
kept = {}
for name, module in model.named_modules():
    if name.startswith("layer3."):
        module.register_forward_hook(lambda m, a, out, n=name: kept.update({n: out.clone()}))
with torch.no_grad():
    model(prepare(Image.open(sys.argv[1]).convert("RGB")).unsqueeze(0))
save_file(kept, sys.argv[2])
