"""Import and export of other libraries' checkpoints, mostly in the Hugging Face format."""

CONFIG = "config.json"
"""The file that describes a model in a Hugging Face folder."""


GENERATION_CONFIG = "generation_config.json"
"""The file with the settings by which a model of a Hugging Face folder generates."""


ADAPTER_CONFIG = "adapter_config.json"
"""The file that describes an adapter of the library peft."""


def register_auto() -> None:
    """Register nGPT with transformers' AutoConfig and the Auto classes, as model type ``zoo-ngpt``."""
    from zoo.hub.auto import register

    register()
