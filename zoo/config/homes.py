"""Where zoo's own choices are registered: modules that are imported when a choice of their kind is asked for.

A first model needs no optimizer and no data set, and their classes are most of what there is to import.
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
"""By the plural of each kind."""
