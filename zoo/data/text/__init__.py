"""Data sets of text: a corpus, a tokenizer and an objective."""
