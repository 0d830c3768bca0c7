"""Intents (`NAME.toml`) and results (`NAME.PROFILE.lock.json`) of the datasets; data only."""
