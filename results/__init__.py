"""Scores of trained runs and benchmark figures that come with the project; data only."""
