"""Text as a data set: a corpus, a tokenizer and an objective."""
