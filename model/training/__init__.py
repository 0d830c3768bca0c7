"""Recipes, data order, optimiser, checkpoints and the training loop."""
