"""The aggregation kernels and the output loss, with their own backward passes."""
