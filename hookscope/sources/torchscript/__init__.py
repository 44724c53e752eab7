"""TorchScript: the graphs of a scripted or traced model in, ordinary ``nn.Module``s out."""
