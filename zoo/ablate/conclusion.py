"""How a comparison ends in the terminal: the verdict table, what it says, what speaks against it."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from zoo.ablate.caveats import caveats
from zoo.ablate.tables import verdict_sheet
from zoo.ablate.verdict import Judgement


def conclusion(judgement: Judgement) -> Group:
    """The verdict for a terminal, as `zoo sweep` and `zoo report` end with it."""
    sheet = verdict_sheet(judgement)
    said = [Text(sentence) for sentence in judgement.sentences]
    doubts = [Text(f"Caution: {sentence}.", style="yellow") for sentence in caveats(judgement)]
    return Group(sheet.rich(), Text(sheet.note, style="dim"), *said, *doubts)
