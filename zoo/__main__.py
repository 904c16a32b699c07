"""``python -m zoo``: the command line, also for ``torchrun -m zoo train``."""

from zoo.commands.cli import main

if __name__ == "__main__":
    main()
