"""The files of a model: their format, how they are read, and the report of what was loaded."""
