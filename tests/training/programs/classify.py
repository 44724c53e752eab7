# A loop over images with torchvision.
import sys

import torch
import torchvision
from torchvision.transforms import v2

torch.manual_seed(0)
net = torchvision.models.mobilenet_v3_small(weights=None, num_classes=5).eval()
transform = v2.Compose([v2.Resize(48), v2.CenterCrop(40)])
labels = ["ant", "bee", "cat", "dog", "elk"]
for number in range(int(sys.argv[1])):
    image = transform(torch.rand(1, 3, 60, 50))
    with torch.no_grad():
        scores = net(image).softmax(dim=1)[0]
    print(number, labels[scores.argmax()], scores.max().item())
