"""For every test."""

import os

# Some tests limit the size of files in a process of their own. Python would leave bytecode there that
# is cut short, and every later import of that module would fail ("marshal data too short").
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
