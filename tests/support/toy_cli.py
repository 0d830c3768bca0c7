"""`python toy_cli.py build toy …`: the program, with the toy among its datasets."""

import sys

import fault_toy

from tangobench.cli import main

if __name__ == "__main__":
    fault_toy.register()
    words = sys.argv[1:]
    if words[:2] in (["build", "toy"], ["plan", "toy"]) and "--manifest" not in words:
        words += ["--manifest", fault_toy.MANIFEST]
    raise SystemExit(main(words))
