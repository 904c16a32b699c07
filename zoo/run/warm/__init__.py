"""Warm starts: a trained model is converted to WeSaR or nGPT, and training continues from there."""
