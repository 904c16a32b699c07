"""Helpers without knowledge of models: errors, atomic files, run folders, sharded tensors, devices, plots."""
