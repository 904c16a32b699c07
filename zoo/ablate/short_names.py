"""Short names of variants, with only the settings in which each differs from the baseline."""

from __future__ import annotations

from zoo.ablate.axes import variant_name
from zoo.ablate.manifest import Manifest


def short_names(manifest: Manifest) -> dict[str, str]:
    """The short name of every variant, by its full name.

    The baseline keeps its full name, and so does a variant whose name is not made of its settings.
    """
    base = next((v.settings for v in manifest.variants if v.name == manifest.baseline), {})
    names = {}
    for variant in manifest.variants:
        differing = {axis: value for axis, value in variant.settings.items() if base.get(axis) != value}
        composed = variant.name == variant_name(variant.settings) and differing
        names[variant.name] = variant_name(differing) if composed else variant.name
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def shortened(manifest: Manifest) -> Manifest:
    """The manifest with short names of variants."""
    names = short_names(manifest)
    variants = tuple(v.model_copy(update={"name": names[v.name]}) for v in manifest.variants)
    runs = tuple(
        run.model_copy(update={"variant": names.get(run.variant, run.variant)}) for run in manifest.runs
    )
    return manifest.model_copy(update={"variants": variants, "runs": runs})
