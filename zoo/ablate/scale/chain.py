"""Tests of several variants with several claims each: a chain per variant (Bretz et al. 2009).

Each variant starts with alpha / m. A claim that holds passes its share to the next claim of its chain; a
chain whose claims all hold passes its share to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.ablate.alpha import ALPHA


def claims(chains: Mapping[str, Sequence[float]], alpha: float = ALPHA) -> dict[str, int]:
    """The number of claims of each chain that hold, at a family-wise error rate of `alpha`.

    Args:
        chains: p-values of each variant's claims, in the order in which they are made.
        alpha: the probability of any false claim.

    Returns:
        For each variant the number of claims that hold, from the first one on.
    """
    share = {name: alpha / len(chains) for name in chains}
    held = dict.fromkeys(chains, 0)
    through: set[str] = set()
    while True:
        ready = [
            name
            for name in chains
            if name not in through and chains[name][held[name]] <= share[name] * (1 + 1e-12)
        ]
        if not ready:
            return held
        name = ready[0]
        held[name] += 1
        if held[name] == len(chains[name]):
            through.add(name)
            open_ = [other for other in chains if other not in through]
            for other in open_:
                share[other] += share[name] / len(open_)
            share[name] = 0.0
