"""Settings are checked in one place, and the file that lists them is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from absflow.errors import SettingsError
from absflow.settings.catalog import PREFIX, SETTINGS
from absflow.settings.reading import Settings, describe

CONF = {f"{PREFIX}storage.path": "/data/job"}


def test_the_conf_file_lists_every_setting_with_its_default() -> None:
    """``conf/absflow.conf`` is what ``describe`` says, so it is complete."""
    file = Path(__file__).parent.parent / "conf" / "absflow.conf"
    assert file.read_text() == describe()


def test_the_defaults_are_what_no_conf_gives() -> None:
    """Writing every default down changes nothing."""
    defaults = {PREFIX + s.name: s.default for s in SETTINGS if s.default is not None}
    assert Settings.from_conf({**CONF, **defaults}) == Settings.from_conf(CONF)


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 500), ("30s", 30_000), ("5min", 300_000), ("1h", 3_600_000)]
)
def test_a_duration_carries_its_unit(text: str, expected: int) -> None:
    """Every unit is understood."""
    conf = {**CONF, f"{PREFIX}checkpoint.interval": text}
    assert Settings.from_conf(conf).checkpoint_interval_ms == expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("checkpoint.intervall", "5s", ["not a setting", "checkpoint.interval?"]),
        ("no.such.thing", "1", ["not a setting", "conf/absflow.conf"]),
        ("checkpoint.interval", "0s", ["'0s'", "above 0"]),
        ("checkpoint.interval", "soon", ["'soon'", "duration"]),
        ("checkpoint.interval", "10", ["'10'", "duration"]),
        ("key-groups", "0", ["'0'", "1 to 32768"]),
        ("key-groups", "many", ["'many'", "whole number"]),
        ("page.max-bytes", "100B", ["'100B'", "from 1KiB to 64MiB"]),
        ("page.max-bytes", "1GiB", ["'1GiB'", "from 1KiB to 64MiB"]),
        ("alignment.max-held", "64MB", ["'64MB'", "64MiB"]),
        ("restart.multiplier", "0.5", ["'0.5'", "at least 1"]),
        ("storage.path", " ", ["' '", "path"]),
    ],
)
def test_a_bad_setting_is_refused_with_what_was_seen_and_expected(
    name: str, value: str, words: list[str]
) -> None:
    """The message names the key, the value and what it may be."""
    with pytest.raises(SettingsError) as refused:
        Settings.from_conf({**CONF, PREFIX + name: value})
    assert all(word in str(refused.value) for word in [PREFIX + name, *words])


def test_all_problems_are_named_at_once() -> None:
    """Nobody mends three settings in three starts."""
    conf = {f"{PREFIX}key-groups": "x", f"{PREFIX}nonsense": "1"}
    with pytest.raises(SettingsError) as refused:
        Settings.from_conf(conf)
    assert all(w in str(refused.value) for w in ("key-groups", "nonsense", "storage.path"))
