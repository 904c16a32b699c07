"""Chapters of a report, one for each sweep or set of run folders; several chapters share a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from zoo.ablate.ladder_verdict import LadderVerdict, is_ladder, judge_ladder
from zoo.ablate.results import Results, read_results
from zoo.ablate.verdict import Judgement, judge
from zoo.report.csv_files import curves_csv
from zoo.report.ladder import ladder_sections
from zoo.report.section import Sample, Section
from zoo.report.sections import report_sections


@dataclass(frozen=True)
class Chapter:
    """The part of a report that is about one sweep.

    Attributes:
        title: the name of the sweep.
        lead: the purpose of the sweep, and the verdicts in words.
        sections: the sections in order.
        variants: the names of the variants, baseline first.
        verdict: the verdict.
        curves: CSV files with the curves of runs, by file name.
    """

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    variants: Sequence[str]
    verdict: Judgement | LadderVerdict
    curves: Mapping[str, str]


def read_chapter(sweep: Path, baseline: str | None, alpha: float, metric: str | None) -> Chapter:
    """Judge a sweep, with sizes or without.

    Args:
        sweep: the folder of the sweep.
        baseline: name of the variant that the others are compared with; None: the sweep's own.
        alpha: the probability of any false claim.
        metric: name of the measure by which the runs are compared; None: the sweep's own, see `read_results`.

    Raises:
        ZooError: The sweep cannot be read or judged, see `read_results`, `judge` and `judge_ladder`.
    """
    if not is_ladder(sweep):
        return chapter_of(judge(read_results([sweep], baseline, metric), alpha))
    verdict = judge_ladder(sweep, baseline, alpha, metric)
    sections = ladder_sections(verdict.verdicts, verdict.baseline, verdict.notes)
    about = [verdict.manifest.description] if verdict.manifest.description else []
    names = [verdict.baseline, *verdict.verdicts]
    return Chapter(verdict.manifest.name, [*about, *verdict.sentences], sections, names, verdict, {})


def chapter_of(judgement: Judgement) -> Chapter:
    """The chapter of a verdict at one size."""
    results = judgement.results
    return Chapter(
        results.manifest.name,
        [*descriptions(results), *judgement.sentences],
        report_sections(judgement),
        results.variants,
        judgement,
        {"curves.csv": curves_csv(results)},
    )


def descriptions(results: Results) -> list[str]:
    """The purposes of the runs, as described in the sweep file or in the configurations of the runs."""
    of_sweep = [results.manifest.description] if results.manifest.description else []
    of_variant = {
        variant: run.config.description
        for variant, run in results.first_runs().items()
        if run.config.description
    }
    if len(set(of_variant.values())) == 1 and len(of_variant) == len(results.first_runs()):
        return of_sweep or list(of_variant.values())[:1]
    return [*of_sweep, *(f"{variant}: {text}" for variant, text in of_variant.items())]


def joined(chapters: Sequence[Chapter], alpha: float) -> tuple[str, list[str], list[Section], dict[str, str]]:
    """Join several chapters to one page.

    Args:
        chapters: two or more chapters.
        alpha: the probability of any false claim in each chapter.

    Returns:
        The title, the lead, the sections and the CSV files, whose names and keys begin with those of the
        chapters.
    """
    names = _unique([chapter.title for chapter in chapters])
    title = ", ".join(names[:-1]) + f" and {names[-1]}"
    lead = [
        f"{len(chapters)} sweeps, each judged by itself: any false claim has probability {alpha:g} in each, "
        f"and up to {min(1.0, alpha * len(chapters)):g} in all of them together."
    ]
    sections: list[Section] = []
    curves: dict[str, str] = {}
    for name, chapter in zip(names, chapters, strict=True):
        slug = _slug(name)
        lead += [f"{name}: {text}" for text in chapter.lead]
        curves |= {f"{slug}-{file}": content for file, content in chapter.curves.items()}
        for section in chapter.sections:
            blocks = [
                block if isinstance(block, Sample) else replace(block, key=f"{slug}-{block.key}")
                for block in section.blocks
            ]
            sections.append(replace(section, title=f"{name}: {section.title}", blocks=blocks))
    return title, lead, sections, curves


def _unique(names: Sequence[str]) -> list[str]:
    """Names that are distinct even as parts of file names; later ones get a number."""
    unique: dict[str, str] = {}
    for name in names:
        numbered = (f"{name} {number}" for number in count(2))
        free = next(each for each in chain([name], numbered) if _slug(each) not in unique)
        unique[_slug(free)] = free
    return list(unique.values())


def _slug(name: str) -> str:
    """A name as a part of file names and of addresses in the page."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "sweep"
