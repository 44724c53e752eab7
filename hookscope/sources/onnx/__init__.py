"""ONNX files as models: a module for each part of the graph, run by onnxruntime."""
