"""What the three papers look at in a model and in a run: measured here, one idea per file, and drawn."""
