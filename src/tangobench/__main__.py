"""`python -m tangobench`."""

from tangobench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
