"""Everything that calls private or machine-near operators, each beside a plain PyTorch path."""
