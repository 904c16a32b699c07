"""``python -m zoo``: the command line, also for ``torchrun -m zoo train``."""

from zoo.cli import main

if __name__ == "__main__":
    main()
