"""The type of the groups that an optimizer's parameters are in."""

from typing import Any, TypeAlias

ParamGroup: TypeAlias = dict[str, Any]
"""Parameters under ``params``, their names, and their options.

Any: which options there are and what type each has is known only to the class of the optimizer, which may
come from elsewhere; torch declares `torch.optim.Optimizer.param_groups` in the same way.
"""
