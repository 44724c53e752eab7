# Detection with torchvision: a list of images, a list of dicts.
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

torch.manual_seed(0)
detector = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
detector.eval()
with torch.no_grad():
    found = detector([torch.rand(3, 64, 80), torch.rand(3, 70, 60)])
for one in found:
    print(len(one["boxes"]), one["scores"][:3].tolist(), one["labels"][:3].tolist())
