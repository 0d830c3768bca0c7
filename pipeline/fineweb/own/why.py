"""Rows and outcomes of your own documents: those of FineWeb-Edu."""

from __future__ import annotations

from tangobench.pipeline.fineweb.why import record, why

__all__ = ["record", "why"]
