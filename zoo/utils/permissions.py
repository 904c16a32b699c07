"""What the user has allowed for this process, against a check that would refuse it."""


class Permissions:
    """The permissions.

    Attributes:
        large: sizes that exceed the memory or all reason (``--allow-large``).
        non_finite: weights and slots that are NaN or infinite (``--allow-non-finite``).
    """

    large = False
    non_finite = False
