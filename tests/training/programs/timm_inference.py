# Inference with timm and argparse.
import argparse

import timm
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--batch-size", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(args.model, num_classes=7).eval()
    with torch.inference_mode():
        for _ in range(2):
            output = model(torch.randn(args.batch_size, 3, 64, 64))
            print(output.topk(3).indices.tolist(), output.std().item())


if __name__ == "__main__":
    main()
