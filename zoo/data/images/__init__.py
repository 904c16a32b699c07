"""Images with a class as a data set."""
