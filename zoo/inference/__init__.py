"""Trained models in use: texts that they generate, and classes that they predict."""
