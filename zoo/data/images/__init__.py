"""Image classification: images with one label each."""
