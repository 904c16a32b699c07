"""Warm starts: a model that is trained becomes one of WeSaR or nGPT, and goes on from there."""
