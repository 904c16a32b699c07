"""Fast paths: private operators of torch and C++, each with a plain PyTorch path that computes the same."""
