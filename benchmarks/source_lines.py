"""How many lines of source every registered method has, as a Markdown table.

python -m benchmarks.source_lines

A method's file is the one that registers it; files that several methods share are listed once, below. Lines
of code have no docstrings, comments and blank lines.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import zoo
import zoo.run.config  # registers everything
from zoo.config.registry import Kind

ROOT = Path(zoo.__file__).parent

SHARED = {
    "optim/blocks.py": "steps in pieces",
    "optim/moments.py": "Adam's averages",
    "optim/cautious.py": "cautious updates",
    "optim/cautious_adamw.py": "cautious AdamW",
    "optim/newton_schulz.py": "Newton-Schulz and Polar Express",
    "optim/matrices.py": "the matrices of a parameter",
    "optim/distributed_matrices.py": "whole matrices on shards",
    "optim/fixed_norm.py": "Hyperball's rule",
    "optim/clip.py": "clips as a kind",
    "optim/constraint.py": "constraints as a kind",
    "run/redundancy.py": "which factors drift",
    "nn/qk.py": "QK-norm",
    "nn/qk_clip.py": "QK-clip",
}
"""Files without a registration, and what they are."""


def code_lines(source: str) -> int:
    """The number of lines with code.

    Args:
        source: the source text of a module.
    """
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts: set[int] = set()
    for node in ast.walk(tree):
        body: list[ast.stmt] = node.body if isinstance(node, documented) else []
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                texts |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def registered() -> dict[Path, list[str]]:
    """The files that register methods, with the names of these."""
    found: dict[Path, list[str]] = defaultdict(list)
    for kind in Kind.registries.values():
        for name, cls in kind.choices.items():
            if "method_source" in vars(cls):
                found[Path(sys.modules[cls.__module__].__file__ or "")].append(f"{kind.name} {name}")
    return found


def main() -> None:
    """Print the table."""
    print("| method | file in `zoo` | lines | of code |\n|---|---|---|---|")
    rows = [(", ".join(names), file) for file, names in registered().items()]
    rows += [(what, ROOT / file) for file, what in SHARED.items()]
    for what, file in rows:
        source = file.read_text(encoding="utf-8")
        lines = len(source.splitlines())
        print(f"| {what} | `{file.relative_to(ROOT)}` | {lines} | {code_lines(source)} |")


if __name__ == "__main__":
    main()
