"""Model files: their format, how they are read, and the report of what was loaded."""
