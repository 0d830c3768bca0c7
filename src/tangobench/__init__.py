"""Data preparation and benchmark pipeline for the TANGO paper."""

__version__ = "0.1.0"
