"""What a trained model is worth on text that it has not seen."""
