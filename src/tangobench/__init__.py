"""Data preparation and benchmark pipeline for the TANGO paper."""

__version__ = "0.2.0"
