"""``python -m tvmtune.cli``."""

from tvmtune.cli import main

if __name__ == "__main__":
    main()
