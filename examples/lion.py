"""Lion (Chen et al., 2023): steps along the sign of an average of the gradient."""

import torch


class Lion(torch.optim.Optimizer):
    """theta <- (1 - lr weight_decay) theta - lr sign(b1 m + (1 - b1) g);  m <- b2 m + (1 - b2) g."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (b1, b2) = group["lr"], group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - b1).sign(), alpha=-lr)
                m.lerp_(p.grad, 1 - b2)
