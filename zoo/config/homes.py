"""The modules that register zoo's own choices; they are imported when a choice of their kind is requested.

Building a model needs no optimizer and no data set, and their modules take most of the import time.
"""

from __future__ import annotations

HOMES = {
    "models": ("zoo.models",),
    "inits": ("zoo.init.schemes", "zoo.init.t5"),
    "reparams": ("zoo.reparam", "zoo.checkpoint.named_lora"),
    "clips": ("zoo.optim.clip", "zoo.optim.adagc", "zoo.optim.virtual_clip", "zoo.optim.zclip"),
    "constraints": ("zoo.optim.constraint", "zoo.optim.hyperball"),
    "optimizers": (
        "zoo.optim.adafactor",
        "zoo.optim.adam",
        "zoo.optim.adamw",
        "zoo.optim.ademamix",
        "zoo.optim.amos",
        "zoo.optim.foreign",
        "zoo.optim.lion",
        "zoo.optim.mars",
        "zoo.optim.muon",
        "zoo.optim.normuon",
        "zoo.optim.prodigy",
        "zoo.optim.schedule_free",
        "zoo.optim.soap",
    ),
    "schedules": ("zoo.optim.schedules",),
    "data": (
        "zoo.data.classification.dataset",
        "zoo.data.images.dataset",
        "zoo.data.images.digits",
        "zoo.data.instructions.dataset",
        "zoo.data.text.dataset",
    ),
    "objectives": ("zoo.data.objectives",),
    "tokenizers": ("zoo.data.tokenizers",),
    "corpora": ("zoo.data.corpora",),
    "templates": ("zoo.data.instructions.template", "zoo.data.instructions.jinja"),
    "loggers": ("zoo.run.loggers",),
    "transfers": ("zoo.init.transfer",),
}
"""Modules by the plural of the kind whose choices they register."""
