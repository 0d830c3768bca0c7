"""The two test parts of DeepMind Mathematics as a dataset of their own, `dm_math_tests`."""
