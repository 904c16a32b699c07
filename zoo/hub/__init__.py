"""Import and export of other libraries' checkpoints, mostly in the layout of the Hugging Face hub."""

CONFIG = "config.json"
"""The file that describes a model in a Hugging Face folder."""


def register_auto() -> None:
    """Register nGPT with transformers' AutoConfig and AutoModelForCausalLM, as model type ``zoo-ngpt``."""
    from zoo.hub.auto import register

    register()
