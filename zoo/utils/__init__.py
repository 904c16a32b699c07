"""Helpers without knowledge of models: errors, atomic files, sharded tensors, devices, plots."""
