"""Triton kernels: numerics checked under the interpreter, cubins compiled; never run on a GPU."""
