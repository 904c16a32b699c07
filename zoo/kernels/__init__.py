"""Fast paths in C++ and private operators of torch, each with an equivalent plain PyTorch path."""
