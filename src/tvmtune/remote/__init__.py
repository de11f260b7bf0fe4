"""Boards: the tracker, the server on each board, and the client that leases them."""
