"""Checkpoints of others, in and out: besides zoo.checkpoint the only place that knows parameter names."""


def register_auto() -> None:
    """Make transformers' AutoConfig and AutoModelForCausalLM know nGPT, under the name ``zoo-ngpt``."""
    from zoo.hub.auto import register

    register()
