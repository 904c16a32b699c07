"""Warm starts: converting a trained model to WeSaR or nGPT, to continue training from the result."""
