"""Sliding windows in config.json: their size, and the layers that have a window."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.hub.fields import Codec, ConfigField, FixedField, RefusedError, Value, without
from zoo.utils.untyped import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = FixedField("layer_types", (FULL, SLIDING), each=True, written=False)
"""The supported types of layers; others (linear attention, chunks) are no windows."""


USE = FixedField("use_sliding_window", (True,))
"""The switch of windows, which `read_use` leaves off only if ``layer_types`` contradicts it."""


class OneWindow(Codec):
    """Codec of a window that all layers have: ``sliding_window``, null for none."""

    def to_zoo(self, value: Value) -> Value:
        """Return the same value, if it is a size or null."""
        if value is not None and not _is_size(value):
            raise RefusedError("null or a positive number of tokens")
        return value

    def to_hf(self, value: Value) -> Value:
        """Return the same value, unless it is a list."""
        if isinstance(value, list):
            raise RefusedError("one window for all blocks")
        return value


class Windows(Codec):
    """Codec of a window that some layers have, in the form of `read_windows`: null, a number or a list."""

    def to_zoo(self, value: Value) -> Value:
        """Return the same values, if they are sizes or null."""
        if not all(
            size is None or _is_size(size) for size in (value if isinstance(value, list) else [value])
        ):
            raise RefusedError("null or a positive number of tokens")
        return value

    def to_hf(self, value: Value) -> Value:
        """Return the same value, unless windows are of different sizes."""
        if isinstance(value, list) and len(set(value) - {None}) > 1:
            raise RefusedError("one size for all blocks with a window")
        return value


def _is_size(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


ONE_WINDOW = ConfigField("sliding_window", "attention.window", default=None, codec=OneWindow())
WINDOWS = ConfigField("sliding_window", "attention.window", default=None, codec=Windows())


def read_use(config: JsonObject) -> JsonObject:
    """Read ``use_sliding_window``, which is false if it is missing.

    Args:
        config: content of config.json.

    Returns:
        The content; if the switch is off, without the switch and with null as the size of the windows. If
        ``layer_types`` has windows nevertheless, the switch stays and is refused later.
    """
    if config.get(USE.hub_name, False):
        return config
    types = config.get(LAYER_TYPES.hub_name)
    if SLIDING in (types if isinstance(types, list) else [types]):
        return config | {USE.hub_name: False}
    return without(config, USE.hub_name) | {"sliding_window": None}


def read_windows(config: JsonObject, types: Sequence[str]) -> JsonObject:
    """Bring ``sliding_window`` into the form of zoo's ``attention.window``, by ``layer_types``.

    Args:
        config: content of config.json.
        types: the types of the layers if ``layer_types`` is missing.

    Returns:
        The content with null, the size, or the shortest list that repeats. An invalid list of types or an
        invalid size stays unchanged and is refused later.
    """
    size, given = config.get("sliding_window"), config.get("layer_types")
    types = types if given is None else given
    if not _is_size(size) or not isinstance(types, list) or not types:
        return config
    windows = [size if kind == SLIDING else None for kind in types]
    return config | {"sliding_window": shortest_cycle(windows)}


def shortest_cycle(values: list[Value]) -> Value:
    """The shortest prefix of a list whose repetition gives the list; if it has one entry, this entry."""
    n = next(n for n in range(1, len(values) + 1) if all(v == values[i % n] for i, v in enumerate(values)))
    return values[0] if n == 1 else values[:n]


def cycled(value: Value, n: int) -> list[Value]:
    """The first `n` entries of a repeated list or single entry: the inverse of `shortest_cycle`."""
    cycle = value if isinstance(value, list) else [value]
    return [cycle[i % len(cycle)] for i in range(n)]


def write_windows(config: JsonObject) -> JsonObject:
    """Write the size of the windows and ``layer_types``: the inverse of `read_windows`."""
    windows = cycled(config["sliding_window"], config["num_hidden_layers"])
    types = [FULL if size is None else SLIDING for size in windows]
    return config | {"sliding_window": next(filter(None, windows), None), "layer_types": types}
