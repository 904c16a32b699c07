"""All that a GPU is needed for: tests of the device, training, the optimizer's step, generation."""
