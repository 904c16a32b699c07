"""Cautions about the data of a comparison: how often they were read, and how much of them is held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def data_cautions(passes: Iterable[float | None], overlaps: Iterable[float | None]) -> Iterator[str]:
    """Sentences, without full stops, on data that were read more than once, or that are known beforehand.

    Args:
        passes: how often each run has read its training data; None: it is not known.
        overlaps: the share of each run's validation text that occurs in its training text, see
            `zoo.data.text.overlap`; None: it was not measured.
    """
    if (most := max((number for number in passes if number is not None), default=0.0)) > 1:
        yield f"the data were read up to {most:.3g} times; nothing is claimed of more than one pass"
    if share := max((share for share in overlaps if share is not None), default=0.0):
        yield (
            f"{share:.1%} of the validation text is in the training text, an advantage to whoever memorises: "
            "check with a second held-out source"
        )
