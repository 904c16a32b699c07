"""How a configuration is written: strict YAML with places, composition, and registries."""
