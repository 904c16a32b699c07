"""From a configuration to a model and its optimizer, and the folder that a run keeps."""
