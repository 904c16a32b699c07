"""Training: the loop, its measurements, checkpoints, and the handling of interrupts and loss spikes."""
