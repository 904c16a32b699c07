"""What `zoo sweep` and `zoo report` print at the end."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from zoo.ablate.caveats import caveats
from zoo.ablate.tables import verdict_table
from zoo.ablate.verdict import Judgement


def conclusion(judgement: Judgement) -> Group:
    """The verdict table, the verdicts in words, and the caveats, for a terminal."""
    table = verdict_table(judgement)
    sentences = [Text(sentence) for sentence in judgement.sentences]
    cautions = [Text(f"Caution: {sentence}.", style="yellow") for sentence in caveats(judgement)]
    return Group(table.rich(), Text(table.note, style="dim"), *sentences, *cautions)
