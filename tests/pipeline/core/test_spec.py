from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import UsageError
from tangobench.pipeline.core import spec as specs
from tangobench.pipeline.core.spec import LATER, UNHASHED, as_dict, bad_value, read_spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    rows: int
    name: str = "x"
    share: float = 0.5
    fast: bool = True
    mode: Literal["drop", "keep"] = "drop"
    dumps: tuple[str, ...] = ()
    limit: int | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise bad_value("rows", self.rows, "a count of at least 1")


@pytest.fixture
def read(tmp_path):
    def reading(text: str | bytes, profile: str = "sample", overrides=None) -> Example:
        path = tmp_path / "example.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_spec(Example, path, profile, overrides)

    return reading


def test_a_profile_overrides_shared_keys_and_overrides_override_both(read):
    text = 'rows = 1\nname = "a"\n[inner]\nsize = 2\n[profiles.sample]\nrows = 3\ninner.size = 4'
    assert read(text) == Example(rows=3, name="a", inner=Inner(size=4))
    assert read(text, overrides={"inner": {"size": 9}}).inner.size == 9
    assert read(text, overrides={"name": "b"}).name == "b"


def test_a_date_is_text(read):
    """`cut = 2024-01-01` is what people write, in a file and with --set."""
    assert read("rows = 1\nname = 2024-01-31\n[profiles.sample]").name == "2024-01-31"
    assert read("rows = 1\nname = 2024-01-31T10:00:00Z\n[profiles.sample]").name.startswith(
        "2024-01-31T10:00:00"
    )


def test_as_dict_is_plain_json(read):
    plain = as_dict(read('rows = 1\ndumps = ["a", "b"]\n[profiles.sample]'))
    assert plain["dumps"] == ["a", "b"]
    assert plain["inner"] == {"size": 1}
    assert plain["limit"] is None


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("row = 3", "spec-key", "did you mean rows?"),
        ("zzz = 3", "spec-key", "known keys: rows, name"),
        ("inner.sise = 3", "spec-key", "did you mean inner.size?"),
        ('rows = "3"', "spec-type", "set rows to a value of type int"),
        ("rows = 3.0", "spec-type", "type int"),
        ("rows = true", "spec-type", "type int"),
        ("rows = -3", "spec-value", "set rows to a count of at least 1"),
        ("rows = 0", "spec-value", "at least 1"),
        ("name = 3", "spec-type", "type str"),
        ("name = 10:00:00", "spec-type", "type str"),
        ("fast = 1", "spec-type", "type bool"),
        ("share = nan", "spec-type", "a finite number"),
        ("share = -inf", "spec-type", "a finite number"),
        ('mode = "both"', "spec-type", "'drop', 'keep'"),
        ("mode = 1", "spec-type", "'drop', 'keep'"),
        ('dumps = "a"', "spec-type", "a list"),
        ("dumps = [1]", "spec-type", "type str"),
        ("inner = 1", "spec-type", "a table"),
        ('limit = "x"', "spec-type", "type int"),
        (f"rows = 0x{'f' * 9000}", "spec-type", "64 bits"),
        (f"share = {'9' * 400}", "spec-type", "finite"),
        ("rows", "spec-syntax", "mend that line"),
        (f"rows = {'9' * 5000}", "spec-syntax", "mend that line"),
        (f"rows = {'[' * 5000}", "spec-syntax", "mend that line"),
    ],
)
def test_a_bad_line_is_one_error_that_names_the_key_and_the_fix(read, line, kind, says):
    text = f"{line}\n[profiles.sample]\n" + ("" if line.startswith("rows") else "rows = 1")
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.kind == kind
    assert caught.value.exit_code == 2
    assert says in caught.value.fix
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400
    if kind not in {"spec-syntax"}:
        assert line.split(" =")[0] in caught.value.details["key"].removesuffix("[]") or says


def test_a_missing_key_a_missing_profile_and_a_missing_file(read, tmp_path):
    with pytest.raises(UsageError, match="'rows' is missing"):
        read("[profiles.sample]")
    with pytest.raises(UsageError, match=r"no profile 'mini' \(it has: sample\)"):
        read("rows = 1\n[profiles.sample]", "mini")
    with pytest.raises(UsageError, match="no spec at"):
        read_spec(Example, tmp_path / "none.toml", "sample")
    with pytest.raises(UsageError, match="Is a directory"):
        read_spec(Example, tmp_path, "sample")


@pytest.mark.parametrize(
    "text",
    ["profiles = 3", "profiles = {sample = 3}", "[profiles]\nsample = [1]", "[[profiles]]\na = 1"],
)
def test_profiles_of_another_shape(read, text):
    with pytest.raises(UsageError):
        read(text)


def test_text_that_is_not_utf8(read):
    with pytest.raises(UsageError, match="not valid TOML"):
        read(b"name = '\xff'\n[profiles.sample]\nrows = 1")
    with pytest.raises(UsageError, match="UTF-8"):
        read("rows = 1\n[profiles.sample]", overrides={"name": "a\udcff"})


VALUES = st.recursive(
    st.integers() | st.floats() | st.booleans() | st.text(max_size=5) | st.dates() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
KEYS = st.sampled_from([*Example.__dataclass_fields__, "profiles", "x"])


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_parse_or_are_refused(values):
    try:
        found = specs.parse(Example, values, where="fuzz")
    except UsageError:
        return
    assert as_dict(found)["rows"] == values["rows"]


@settings(max_examples=300)
@given(
    st.text(alphabet="abrowsnmelip =.[]{}\"'\n#0123456789_-", max_size=60)
    | st.binary(max_size=40).map(lambda data: data.decode("latin-1"))
)
def test_any_toml_parses_or_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text(text + "\n[profiles.sample]\nrows = 1", encoding="utf-8")
    try:
        read_spec(Example, path, "sample")
    except UsageError as error:
        assert error.kind.startswith("spec-")


def test_every_manifest_of_the_project_parses_in_every_profile():
    from tangobench.pipeline import api

    for path in sorted(Path(specs.manifest_file("")).glob("*.toml")):
        document = tomllib.loads(path.read_text())
        cls = api.door(document.get("kind", path.stem), "Spec")
        for profile in document.get("profiles", ["full"]):
            plain = as_dict(read_spec(cls, path, profile))
            assert json.loads(json.dumps(plain)) == plain


def test_fields_outside_the_lock_and_later_fields():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Inner:
        kept: int = 1
        where: str = dataclasses.field(default="here", metadata=UNHASHED)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Outer:
        inner: Inner = dataclasses.field(default_factory=Inner)
        later: tuple[int, ...] = dataclasses.field(default=(), metadata=LATER)

    assert as_dict(Outer()) == {"inner": {"kept": 1}}
    assert as_dict(Outer(later=(2,))) == {"inner": {"kept": 1}, "later": [2]}
