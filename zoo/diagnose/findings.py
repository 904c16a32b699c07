"""Everything there is to see in a model at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.diagnose.conditioning import Conditioning, conditioning
from zoo.diagnose.embeddings import Embeddings, embeddings
from zoo.diagnose.entropy import AttentionEntropy, attention_entropy
from zoo.diagnose.places import Place, places
from zoo.diagnose.summary import finite, summary
from zoo.diagnose.vectors import Vector, vectors
from zoo.init import EtaOverride, Registry
from zoo.models import Model


@dataclass(frozen=True)
class Scale:
    """A variable's M2 = sqrt(mean(theta^2)) beside Amos' eta (Amos, Figure 3).

    Attributes:
        place: the variable, as it is trained.
        m2: of its entries.
        eta: from the registry.
    """

    place: Place
    m2: float
    eta: float


@dataclass(frozen=True)
class Findings:
    """What was measured of a model; each part is empty where the model has nothing of the kind.

    Attributes:
        matrices: spectra of the kernels.
        embeddings: of the tables of the vocabulary.
        vectors: eigen learning rates, scalings, gates, norm scales.
        scales: M2 and eta of everything that is trained.
        entropies: of attention, on examples; empty without any.
    """

    matrices: list[Conditioning]
    embeddings: list[Embeddings]
    vectors: list[Vector]
    scales: list[Scale]
    entropies: list[AttentionEntropy]

    def to_json(self) -> dict[str, Any]:
        """For programs: all numbers, distributions as summaries."""
        return {
            "condition_numbers": {
                c.place.name: {
                    **_where(c.place),
                    "heads": _numbers(c.numbers),
                    "renormalised_heads": _numbers(c.renormalised_numbers),
                    "vector_norms": summary(c.norms),
                    "singular_values": summary(c.singular),
                }
                for c in self.matrices
            },
            "embeddings": {
                e.place.name: {
                    "norms": summary(e.norms),
                    "eigenvalues_over_median": _numbers(e.eigenvalues),
                    "dot_products": summary(e.dots),
                    "vectors_of_the_dot_products": e.sampled,
                }
                for e in self.embeddings
            },
            "vectors": {
                v.place.name: {**_where(v.place), "role": str(v.place.spec.role), **summary(v.values)}
                for v in self.vectors
            },
            "scales": {
                s.place.name: {**_where(s.place), "m2": s.m2, "eta": s.eta, "m2_over_eta": s.m2 / s.eta}
                for s in self.scales
            },
            "attention_entropy": [
                {"layer": e.layer, "label": e.label, "heads": _numbers(e.heads), "uniform": e.uniform}
                for e in self.entropies
            ],
        }


def look(
    model: Model, inputs: Sequence[Tensor] | None = None, eta_overrides: Sequence[EtaOverride] = ()
) -> Findings:
    """Measure everything.

    Args:
        model: in evaluation mode, not sharded.
        inputs: examples as `forward` takes them, for the attention's entropy; None: without it.
        eta_overrides: of the run.
    """
    return Findings(
        conditioning(model),
        embeddings(model),
        vectors(model),
        scales(model, eta_overrides),
        attention_entropy(model, *inputs) if inputs is not None else [],
    )


@torch.no_grad()
def scales(model: Model, eta_overrides: Sequence[EtaOverride] = ()) -> list[Scale]:
    """M2 and eta of everything that is trained."""
    where = {place.name: place for place in places(model)}
    return [
        Scale(where[e.name], e.parameter.double().square().mean().sqrt().item(), e.eta)
        for e in Registry(model, eta_overrides=eta_overrides)
    ]


def _where(place: Place) -> dict[str, Any]:
    return {"layer": place.layer, "label": place.label}


def _numbers(values: Tensor) -> list[float | None]:
    return [finite(value) for value in values.tolist()]
