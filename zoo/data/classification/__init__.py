"""Text classification: texts, or pairs of texts, with one label each."""
