"""Checks the files of a commit: ends of lines and files, conflicts, sizes, YAML and JSON that parse."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import yaml

LARGEST = 1_000_000
"""Bytes."""

PATTERNS = {
    "a merge conflict": re.compile(r"^(<{7} |>{7} |={7}$)", re.M),
    "spaces at the end of a line": re.compile(r"[ \t]+$", re.M),
    "a path in a home directory": re.compile(r"/(?:home|Users)/\w+/"),
}


def problems(file: Path) -> list[str]:
    """What is wrong with a file, in words; binary files are only measured."""
    data = file.read_bytes()
    found = [f"has {len(data)} bytes, more than {LARGEST}"] if len(data) > LARGEST else []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return found
    found += [f"has {what}" for what, pattern in PATTERNS.items() if pattern.search(text)]
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        found.append("does not end in one newline")
    try:
        if file.suffix == ".json":
            json.loads(text)
        elif file.suffix in (".yaml", ".yml") and file.name != "mkdocs.yml":  # which has tags
            yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        found.append(f"cannot be parsed: {error}")
    return found


def main(names: list[str]) -> int:
    """Print every problem of the files; returns 1 if there is one, else 0."""
    lines = [
        f"{name}: {problem}"
        for name in names
        if Path(name).is_file() and not Path(name).is_symlink()
        for problem in problems(Path(name))
    ]
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
