"""What was found in a model, section by section: what is shown, and how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zoo.diagnose.conditioning import Conditioning, head_axis
from zoo.diagnose.embeddings import Embeddings
from zoo.diagnose.findings import Findings
from zoo.diagnose.model_figures import (
    draw_condition_numbers,
    draw_embeddings,
    draw_entropy,
    draw_scales,
    draw_spectra,
    draw_vectors,
)
from zoo.diagnose.section import Section
from zoo.spec import Role

NEAR = (3, 4)
"""The layers that the paper looks at from near (nGPT, Figures 11 and 12)."""

TITLES = {
    Role.SCALING: ("scalings", "Eigen learning rates and scalings"),
    Role.GATE: ("gates", "Gates"),
    Role.NORM_SCALE: ("norm-scales", "Scales of normalisation layers"),
}


def model_sections(found: Findings) -> list[Section]:
    """A section for everything the model has."""
    return list(_sections(found))


def _sections(found: Findings) -> Iterator[Section]:
    if found.embeddings:
        yield Section(
            "embeddings",
            "Embeddings",
            "Norms of the vectors; eigenvalues of their covariance over the median eigenvalue, in "
            "decreasing order; dot products of all pairs of different vectors"
            + _sampled(found.embeddings)
            + " (nGPT, Figure 4). Steep eigenvalues mean an ill-conditioned table, dot products far from "
            "0 clusters.",
            draw_embeddings(found.embeddings),
        )
    if found.matrices:
        yield Section(
            "condition-numbers",
            "Condition numbers",
            "Largest over smallest singular value of each matrix, the median over the heads where it has "
            "heads; dotted: after every vector of the stream's length was given unit norm (nGPT, Figures 5 "
            "and 10). Large values mean that a matrix has nearly lost rank. Infinite ones are left out.",
            draw_condition_numbers(found.matrices),
        )
    if near := _near(found.matrices):
        yield Section(
            "spectra",
            f"Attention matrices of layer {' and '.join(map(str, near))}",
            "Left: norms of the vectors of the whole matrices. Right: singular values of all heads (nGPT, "
            "Figures 11 and 12). A mass at 0 on the right means lost directions.",
            draw_spectra(found.matrices, near),
        )
    for role, (name, title) in TITLES.items():
        if chosen := [v for v in found.vectors if v.place.spec.role is role]:
            yield Section(
                name,
                title,
                "Mean over the entries, layer by layer, with the middle half and the middle 90 % of them "
                "shaded; a histogram where there is but one (nGPT, Figures 6 and 14). Scalings are shown as "
                "they take effect: times s_init / s_scale, eigen learning rates as absolute values.",
                draw_vectors(chosen),
            )
    yield Section(
        "scale-over-eta",
        "Scale of every variable over eta",
        "M2 = sqrt(mean(theta^2)) of what is trained over Amos' eta; layer 0 is what lies outside of the "
        "layers. Training with Amos should bring it close to 1 (Amos, section 5.2 and Figure 3).",
        draw_scales(found.scales),
    )
    if found.entropies:
        yield Section(
            "attention-entropy",
            "Attention entropy",
            "Entropy of each head's attention on the examples, over that of a head that looks at all it sees "
            "alike: 1 is uniform, 0 is one token only.",
            draw_entropy(found.entropies),
        )


def _near(found: Sequence[Conditioning]) -> list[int]:
    """The layers to look at from near: the paper's, or the last two where there are fewer."""
    layers = sorted({c.place.layer for c in found if head_axis(c.place.spec) is not None})
    return [layer for layer in NEAR if layer in layers] if set(NEAR) <= set(layers) else layers[-2:]


def _sampled(found: Sequence[Embeddings]) -> str:
    counts = {e.sampled for e in found if e.sampled < len(e.norms)}
    return f", here of {counts.pop():,} vectors drawn at random" if counts else ""
