"""The server on a board, and the sessions that it forks."""
