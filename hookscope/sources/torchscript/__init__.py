"""TorchScript: the graphs of a scripted or traced model compiled to ordinary ``nn.Module``s."""
