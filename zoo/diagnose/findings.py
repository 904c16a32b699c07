"""All measurements of a model at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zoo.diagnose.conditioning import MatrixSpectrum, matrix_spectra
from zoo.diagnose.embeddings import EmbeddingTable, embedding_tables
from zoo.diagnose.entropy import AttentionEntropy, attention_entropy
from zoo.diagnose.locations import ParameterLocation, locate_parameters
from zoo.diagnose.summary import finite_or_none, summarise
from zoo.diagnose.vectors import ScaleVector, scale_vectors
from zoo.init import Entry, Registry
from zoo.models import Model
from zoo.utils.errors import DataError


@dataclass(frozen=True)
class RelativeScale:
    """A variable's M2 = sqrt(mean(theta^2)) and Amos' eta for it (Amos, Figure 3).

    Attributes:
        location: the trained parameter.
        m2: the root mean square of the entries.
        eta: the eta of the registry.
    """

    location: ParameterLocation
    m2: float
    eta: float


@dataclass(frozen=True)
class Findings:
    """The measurements of a model; a list is empty if the model has no such parts.

    Attributes:
        matrices: the spectra of the kernels.
        embeddings: the statistics of the vocabulary's tables.
        vectors: eigen learning rates, scalings, gates, norm scales.
        scales: M2 and eta of all trained parameters.
        entropies: entropies of the attentions; empty if there were no examples.
    """

    matrices: list[MatrixSpectrum]
    embeddings: list[EmbeddingTable]
    vectors: list[ScaleVector]
    scales: list[RelativeScale]
    entropies: list[AttentionEntropy]

    def to_json(self) -> dict[str, object]:
        """All numbers as a JSON object; distributions are summarised."""
        return {
            "condition_numbers": {
                c.location.name: {
                    **_layer_and_label(c.location),
                    "heads": _numbers(c.condition_numbers),
                    "renormalised_heads": _numbers(c.renormalised_condition_numbers),
                    "vector_norms": summarise(c.vector_norms),
                    "singular_values": summarise(c.singular_values),
                }
                for c in self.matrices
            },
            "embeddings": {
                e.location.name: {
                    "norms": summarise(e.norms),
                    "eigenvalues_over_median": _numbers(e.eigenvalues),
                    "dot_products": summarise(e.dot_products),
                    "vectors_of_the_dot_products": e.sample_size,
                }
                for e in self.embeddings
            },
            "vectors": {
                v.location.name: {
                    **_layer_and_label(v.location),
                    "role": str(v.location.spec.role),
                    **summarise(v.values),
                }
                for v in self.vectors
            },
            "scales": {
                s.location.name: {
                    **_layer_and_label(s.location),
                    "m2": s.m2,
                    "eta": s.eta,
                    "m2_over_eta": s.m2 / s.eta,
                }
                for s in self.scales
            },
            "attention_entropy": [
                {"layer": e.layer, "label": e.label, "heads": _numbers(e.heads), "uniform": e.uniform}
                for e in self.entropies
            ],
        }


def require_measurable(model: Model, path: Path) -> None:
    """Refuse a model that cannot be measured, which was read with ``--allow-non-finite``.

    Args:
        model: the model.
        path: where it was read, for the message.

    Raises:
        DataError: A parameter has entries that are not finite.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise DataError(f"{path}: {name} has entries that are not finite, which have no spectrum")


def measure_model(
    model: Model,
    inputs: Sequence[Tensor] | None = None,
    entries: Sequence[Entry] | None = None,
    mask: Tensor | None = None,
) -> Findings:
    """Take all measurements of this package.

    Args:
        model: a model in evaluation mode, not sharded.
        inputs: examples as `forward` takes them, for the entropy of attention; None: it is not measured.
        entries: the parameters with the etas that they were trained with, empty if these are unknown; None:
            the etas are those that the model declares.
        mask: which positions of the examples are no padding, see `attention_entropy`.
    """
    return Findings(
        matrix_spectra(model),
        embedding_tables(model),
        scale_vectors(model),
        relative_scales(model, Registry(model) if entries is None else entries),
        attention_entropy(model, *inputs, mask=mask) if inputs is not None else [],
    )


@torch.no_grad()
def relative_scales(model: Model, entries: Sequence[Entry]) -> list[RelativeScale]:
    """M2 and eta of some parameters of a model."""
    locations = {location.name: location for location in locate_parameters(model)}
    return [
        RelativeScale(locations[e.name], e.parameter.double().square().mean().sqrt().item(), e.eta)
        for e in entries
    ]


def _layer_and_label(location: ParameterLocation) -> dict[str, object]:
    return {"layer": location.layer, "label": location.label}


def _numbers(values: Tensor) -> list[float | None]:
    return [finite_or_none(value) for value in values.tolist()]
