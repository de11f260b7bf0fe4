"""int8 quantization: which layers, which scales, and the integer arithmetic."""
