"""``python -m benchmarks.campaigns``: try campaigns, go on where an earlier call ended, print a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.campaigns.common import HEAD, Campaign, Tally, run
from benchmarks.campaigns.configurations import Configurations
from benchmarks.campaigns.exactness import Exactness
from benchmarks.campaigns.files import Files
from benchmarks.campaigns.kills import Kills
from benchmarks.campaigns.power import Power
from benchmarks.campaigns.resources import Resources

CAMPAIGNS: dict[str, tuple[type[Campaign], int]] = {
    "kills": (Kills, 1000),
    "power": (Power, 1000),
    "configurations": (Configurations, 20_000),
    "files": (Files, 5000),
    "resources": (Resources, 380),
    "exactness": (Exactness, 500),
}
"""The campaigns, and how many cases each tries."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the number of cases")
    parser.add_argument("--out", type=Path, default=Path("runs/campaigns"), help="where outcomes are kept")
    parser.add_argument("--shown", type=int, default=20, help="bad outcomes that are printed")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in CAMPAIGNS]:
        parser.error(f"no campaign {', '.join(unknown)}; there are {', '.join(CAMPAIGNS)}")
    tallies: list[Tally] = []
    for name in given.names or CAMPAIGNS:
        kind, count = CAMPAIGNS[name]
        print(f"{name}: {round(count * given.share)} cases with seed {given.seed}", flush=True)
        tallies.append(run(kind(), round(count * given.share), given.seed, given.out / f"{name}.jsonl"))
        for outcome in tallies[-1].bad[: given.shown]:
            print(f"  {outcome.kind}: {outcome.case}: {outcome.detail}", flush=True)
    print("\n".join([HEAD, *(row for tally in tallies for row in tally.rows)]))
    if any(tally.bad for tally in tallies):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
