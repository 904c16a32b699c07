"""The type of an optimizer's parameter groups."""

from typing import Any, TypeAlias

ParamGroup: TypeAlias = dict[str, Any]
"""Parameters under ``params``, their names, and their options.

Any: only the class of the optimizer, which may be from another package, knows the options and their types;
torch declares `torch.optim.Optimizer.param_groups` in the same way.
"""
