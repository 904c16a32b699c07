"""Reading configurations: strict YAML with places, composition, and registries."""
