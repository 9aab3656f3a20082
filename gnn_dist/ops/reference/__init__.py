"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""
