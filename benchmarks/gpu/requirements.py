"""Prints what a machine needs that has Python and torch and no network, for `make gpu-wheels`.

python -m benchmarks.gpu.requirements
python -m benchmarks.gpu.requirements pydantic pydantic-core   # of these only what it lacks
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

ROOTS = ("zoo", "transformers", "pytest")
THERE = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""What comes with torch, which is made for the machine's own GPU."""


def closure(roots: Sequence[str]) -> Iterator[str]:
    """The distributions that others need, directly or not, as NAME==VERSION of the present environment."""
    seen, waiting = set(roots), list(roots)
    while waiting:
        name = waiting.pop()
        if THERE.fullmatch(name):
            continue
        try:
            if name != "zoo":
                yield f"{name}=={version(name)}"
        except PackageNotFoundError:
            continue  # its marker does not hold here
        for line in requires(name) or ():
            if "extra ==" not in line:
                needed = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower()  # type: ignore[index]
                if needed not in seen:
                    seen.add(needed)
                    waiting.append(needed)


def chosen(names: Sequence[str]) -> list[str]:
    """Of all that is needed the distributions of some names, or all where none are given.

    Raises:
        SystemExit: one of them is not needed.
    """
    found = {requirement.split("==")[0]: requirement for requirement in closure(ROOTS)}
    if unknown := set(names) - found.keys():
        raise SystemExit(
            f"not needed: {', '.join(sorted(unknown))}; expected some of {', '.join(sorted(found))}"
        )
    return [found[name] for name in sorted(names or found)]


if __name__ == "__main__":
    print("\n".join(chosen(sys.argv[1:])))
