"""FineWeb-Edu: temporal split, deduplicated by URL and content, packed into rows."""
