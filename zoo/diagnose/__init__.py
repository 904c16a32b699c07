"""Measurements of a model and of its training that the three papers show, one idea per file."""
