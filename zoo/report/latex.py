"""Tables as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zoo.ablate.table import Table
from zoo.utils.printable import printable

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "|": r"\textbar{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{WORD JOINER}": "{}",
}
SIGN = re.compile(r"(?<![\w)])-(?=\d)")
"""Pattern of the sign of a negative number, which LaTeX would set as a hyphen."""
LIGATURE = re.compile(r"-(?=-)")
"""Pattern of a hyphen that LaTeX would join with the next one to a dash, as in the name of an option."""


def tables_latex(tables: Sequence[Table]) -> str:
    """The tables of a page, each a `table` of the package booktabs."""
    return "\n".join(["% \\usepackage{booktabs, graphicx}", *map(_table, tables)])


def _table(table: Table) -> str:
    alignment = "".join("r" if column.align_right else "l" for column in table.columns)
    rows = [" & ".join(map(_escape, row)) + r" \\" for row in table.texts]
    head = " & ".join(_escape(column.title) for column in table.columns) + r" \\"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(table.title)}. {_escape(table.note)}}}",
            rf"\label{{tab:{table.key}}}",
            r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def _escape(text: str) -> str:
    line = " ".join(printable(text).split())  # an empty line would end the paragraph
    guard = (
        "{}" if line.startswith(("[", "*")) else ""
    )  # otherwise LaTeX reads it as an argument of the preceding line break
    line = LIGATURE.sub("-\N{WORD JOINER}", SIGN.sub("\N{MINUS SIGN}", line))
    return guard + "".join(SPECIAL.get(character, character) for character in line)
