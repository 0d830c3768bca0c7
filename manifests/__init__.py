"""Intents (`NAME.toml`) and results (`NAME.PROFILE.lock.json`) of the datasets, and two programs.

`verify_standalone.py` checks a dataset without this project; `fineweb_sample.py` wrote its sample.
"""
