"""A data set without files: a + b modulo a prime, on which grokking was found (arXiv 2201.02177)."""

from hashlib import sha256
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from zoo import DATASETS, Batch, DataConfig, ZooError
from zoo.data.dataset import ModelRequirements
from zoo.data.map_dataset import MapDataset
from zoo.nn.loss import IGNORE_INDEX


class AdditionDataset(MapDataset[Tensor]):
    """All pairs (a, b) in one fixed order; the first ones are trained on, the rest is validation."""

    unit = "equations"
    tokenizer = None

    def __init__(self, prime: int, share: float) -> None:
        self.prime = prime
        order = np.random.default_rng(0).permutation(prime**2)
        pairs = torch.from_numpy(np.stack((order // prime, order % prime), 1))
        n = round(share * len(pairs))
        self.train_examples, self.validation_examples = pairs[:n], pairs[n:]
        self.train_units = n
        self.fingerprint = sha256(f"addition {prime} {n}".encode()).hexdigest()

    def collate(self, examples: Tensor, indices: NDArray[np.int64]) -> Batch:
        """The tokens ``a + b =``, and targets that ask for the sum after the last one: (n, 4) int64 each."""
        a, b = examples[torch.from_numpy(indices)].unbind(1)
        plus, equals = (torch.full_like(a, self.prime + i) for i in range(2))
        ignored = torch.full_like(a, IGNORE_INDEX)
        return torch.stack((a, plus, b, equals), 1), torch.stack((*[ignored] * 3, (a + b) % self.prime), 1)


@DATASETS.register
class Addition(DataConfig):
    """Equations a + b = c modulo a prime, a share of which is trained on."""

    unit: ClassVar[str] = "equations"

    type: Literal["addition"] = "addition"
    prime: int = Field(97, ge=2, description="the numbers are 0 to prime - 1")
    share: float = Field(0.5, gt=0, lt=1, description="share of the equations that are trained on")

    @property
    def length(self) -> int:
        """Tokens of an example."""
        return 4

    @property
    def objective_name(self) -> str:
        """The models are those that predict the next token."""
        return "causal"

    def prepare(self, model: ModelRequirements) -> AdditionDataset:
        """Make the equations; ids `prime` and `prime` + 1 are the two signs."""
        self.check_model(model)
        if getattr(model, "vocab_size", 0) < self.prime + 2:
            raise ZooError(
                f"data.prime: value {self.prime}: expected a vocab_size of at least {self.prime + 2}"
            )
        return AdditionDataset(self.prime, self.share)
