"""Messages about missing optional packages."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs the packages of one of zoo's extras, as the end of a message.

    It names zoo by its files, because a package index may have another package of that name.
    """
    wheel = f"'WHEEL[{extra}]' with the path of the wheel that zoo was installed from"
    return f"pip install '.[{extra}]' in the folder of zoo's source, or {wheel}"
