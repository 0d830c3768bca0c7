"""Command groups of the `tangobench` program: each module adds its commands with `add`."""
