"""PyTorch programs (``.pt2``)."""
