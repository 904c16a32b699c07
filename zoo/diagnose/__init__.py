"""Measurements of a model and of its training, as the three papers show them."""
