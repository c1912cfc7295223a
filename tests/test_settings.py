"""The table of settings: a row that is added arrives everywhere."""

import subprocess
import sys
from dataclasses import replace

import pytest

from coolsd import METHODS
from coolsd.methods import omega
from coolsd.settings import SettingsError, check, validate

ADDED = """
from dataclasses import make_dataclass, field

from coolsd import settings

row = settings.Setting(
    "sharpness", "number", 0.5, "the sharpness", "Sharpness", "how crisp it is", (0.0, 4.0), slider=(0.0, 2.0, 0.1), group="schedule"
)
settings.SETTINGS["sharpness"] = row
settings.Settings = make_dataclass("Settings", [("sharpness", float, field(default=0.5))], bases=(settings.Settings,), frozen=True)

import inspect

from coolsd.__main__ import build_parser
from coolsd.ui import api, controls, page

demo = page.build()
print(settings.validate(["ar"], prompt="x", method="ar", sharpness=3).sharpness)
try:
    settings.validate(["ar"], prompt="x", method="ar", sharpness=5)
except settings.SettingsError as error:
    print(error)
print(build_parser().parse_args(["generate", "x", "--sharpness", "1.5"]).sharpness)
print([(b.label, b.minimum, b.maximum, b.step, b.value) for b in demo.blocks.values() if getattr(b, "label", None) == "Sharpness"])
print("sharpness" in controls.CONTROLS, "sharpness" in controls.METHOD_SETTINGS)
print(controls.from_query({"sharpness": "2.5"}, ["ar"]))
print(inspect.signature(api.endpoint(None, None)).parameters["sharpness"])
print([line.strip() for line in api.endpoint(None, None).__doc__.splitlines() if "sharpness" in line])
"""


def test_a_row_of_the_table_arrives_everywhere():
    result = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, check=True).stdout.splitlines()
    assert result == [
        "3.0",
        "5 is out of range. Give the sharpness as a number from 0 to 4.",
        "1.5",
        "[('Sharpness', 0.0, 2.0, 0.1, 0.5)]",
        "True True",
        "({'sharpness': 2.5}, [])",
        "sharpness: float = 0.5",
        "['sharpness: The sharpness: how crisp it is; a number from 0 to 4']",
    ]


def test_omega_by_hand_is_read_in_any_writing_padded_with_1_and_refused_in_words():
    for value in ("1.4, 2", "[1.4 2]", (1.4, 2.0), "1.4;2.0"):
        assert check("omega", value) == "1.4,2"
    assert check("omega", "") == check("omega", " auto ") == "auto"
    for method in ("coolsd", "coolsd-block"):
        by_hand = validate(METHODS, prompt="x", method=method, omega=[1.4, 0.5], draft_length=4, clamp=True)
        assert omega(by_hand).tolist() == pytest.approx([1.4, 0.5, 1, 1])
        assert omega(replace(by_hand, draft_length=1)).tolist() == pytest.approx([1.4])
    for value in (None, 3, "much", "1,-2", "nan", ",".join(["1"] * 17), [True, "x"]):
        with pytest.raises(SettingsError, match="1 to 16 numbers from 0 to 1000"):
            check("omega", value)
