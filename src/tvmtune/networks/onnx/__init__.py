"""ONNX files: reading them, the importer's gaps, the network."""
