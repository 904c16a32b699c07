"""Permissions by which the user overrides checks in this process."""


class Permissions:
    """The permissions that the user has given to this process for unusual files.

    Attributes:
        large: whether sizes may exceed the memory or be implausible (``--allow-large``).
        non_finite: whether weights and slots may be NaN or infinite (``--allow-non-finite``).
    """

    large = False
    non_finite = False
