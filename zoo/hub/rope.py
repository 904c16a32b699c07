"""Rotary positions in a config.json: one object since transformers 5, two fields before."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def read_rope(config: Json) -> Json:
    """``rope_parameters`` as the older ``rope_theta`` and ``rope_scaling``; its ``type`` as ``rope_type``.

    What is there in both spellings is taken from the newer one, as their library does.
    """
    config = dict(config)
    scaling = config.pop("rope_parameters", None) or config.pop("rope_scaling", None)
    config.pop("rope_scaling", None)
    if not isinstance(scaling, dict):
        return config | ({} if scaling is None else {"rope_scaling": scaling})
    scaling = dict(scaling)
    old = scaling.pop("type", "default")
    kind = scaling.pop("rope_type", old)
    if "rope_theta" in scaling:
        config["rope_theta"] = scaling.pop("rope_theta")
    if kind == "default" and not scaling:
        return config
    return config | {"rope_scaling": {"rope_type": kind, **scaling}}


def write_rope(config: Json) -> Json:
    """Both spellings, so that older and newer readers find theirs."""
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    return config | {"rope_parameters": {"rope_theta": config["rope_theta"], **scaling}}
