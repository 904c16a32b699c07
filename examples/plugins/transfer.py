"""A rule with smaller rates in a wider model: width^(-1/2) for hidden matrices, and nothing else."""

from typing import Literal

from zoo import TRANSFERS, ParamSpec, Transfer
from zoo.init.transfer import Factors, Sizes


@TRANSFERS.register
class RootWidth(Transfer):
    """Rates of hidden matrices over the square root of their width."""

    type: Literal["root-width"] = "root-width"

    def factors(self, spec: ParamSpec, in_block: bool, sizes: Sizes) -> tuple[Factors, float]:
        """Return the factors of a parameter, and the fixed factor behind it, which is 1."""
        is_hidden = sizes.use(spec, in_block) == "hidden"
        return Factors(lr=sizes.inputs(spec) ** -0.5 if is_hidden else 1.0), 1.0
