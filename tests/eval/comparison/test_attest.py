"""One JSON of kernels, steps and a root; nothing in it says where it was made."""

import json
import socket

from tangobench.cli import main


def test_what_is_sent_back(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path)
    words = ["attest", "--recipe", "sample-dm_math-flash", "--steps", "3", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path), "--quiet"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["kernel"] == {"chosen": "strips", "refused": None}
    assert found["training"]["steps"] == 3
    assert found["training"]["planned_for"] == "cpu"
    assert found["training"]["step_seconds"] > 0 < found["training"]["planned_step_seconds"]
    assert found["data"]["as_committed"] is False  # toy rows are not the committed sample
    assert str(tmp_path) not in text and socket.gethostname() not in text
