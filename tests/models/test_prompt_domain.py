"""What a pair paints: words of its captions, words near them, and the notice for a prompt that lies outside."""

import csv
from types import SimpleNamespace

import pytest
from tiny import text

from coolsd.models.checkpoints import ASSETS
from coolsd.models.llamagen.text_table import TextTable
from coolsd.models.prompt_domain import NEAR, Near, PromptDomain, notice, outside
from coolsd.training.words import things, write_words

INSIDE = [
    "a pink rose on a dark background",
    "misty forest",
    "Sunset over the SEA!",
    "blossom",
    "ocean",
    "two daisies, please",
    "tulips",
    "lakes",
    "woods in the evening",
    "trees",
    "roses",
    "shore",
    "foggy",
    "snowfall",
    "rosebud",
    "a beautiful mountain",
]
OUTSIDE = [
    "a red car",
    "a dark car",
    "a blue car",
    "dog",
    "a cat on a chair",
    "a man's face",
    "robot",
    "pizza",
    "king",
    "dragon",
    "horse",
    "a spaceship",
    "guitar",
    "portrait of a queen",
    "the city at work",
    "elephant",
    "a skyscraper",
    "shoes",
    "123",
]


@pytest.fixture(scope="module")
def meadow():
    return TextTable.load(ASSETS / "meadow", 24)


def test_words_of_the_world_and_near_ones_are_inside(meadow):
    assert [prompt for prompt in INSIDE if outside(meadow, prompt)] == []


def test_other_prompts_are_outside(meadow):
    assert [prompt for prompt in OUTSIDE if not outside(meadow, prompt)] == []


def test_the_threshold_has_room_on_both_sides(meadow):
    near = Near(meadow.domain, meadow.tokenizer, meadow.table)
    assert min(near(word) for word in ("ocean", "woods", "trees", "snowfall", "rosebud")) > NEAR + 0.03
    assert max(near(word) for word in ("car", "dog", "robot", "king", "horse", "elephant", "city", "chair")) < NEAR - 0.03


def test_the_notice_names_the_pair_and_offers_prompts(meadow):
    pair = SimpleNamespace(name="meadow", text=meadow)
    assert notice(pair, "misty forest") == ""
    message = notice(pair, "a red car")
    assert message.startswith("meadow paints flowers and landscapes")
    assert all(example in message for example in meadow.domain.examples)
    assert all(not outside(meadow, example) for example in meadow.domain.examples)


def test_the_notice_quotes_the_end_that_was_not_read(meadow):
    pair = SimpleNamespace(name="meadow", text=meadow)
    fits = " ".join(["rose"] * 24)
    assert notice(pair, fits) == ""
    assert len(meadow.ids(f"{fits} on a hill")) == 24
    assert notice(pair, f"{fits} on a HILL") == "The prompt is too long: meadow reads 24 text tokens, and left out “on a hill”."
    assert len(notice(pair, fits * 30)) < 200
    assert "left out “b c" in notice(pair, " ".join(["rose"] * 23 + ["a", "b c", "d" * 900]))


def test_a_pair_without_a_world_says_nothing():
    assert notice(SimpleNamespace(name="tiny", text=text()), "a red car") == ""
    assert notice(SimpleNamespace(name="toy"), "a red car") == ""


def test_a_pair_of_ones_own_has_a_world_of_its_own(tmp_path):
    captions = tmp_path / "captions.csv"
    with captions.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["file", "label", "captions"])
        writer.writerow(["1.png", "prince of wales feathers", "a red thing|a photo"])
        writer.writerow(["2.png", "sea", "the sea at night|dark sea"])
        writer.writerow(["3.png", "", "a steam engine under a bridge"])
    assert things(captions) == {"feathers", "flower", "sea", "night", "steam", "engine", "bridge"}
    write_words(captions, tmp_path, "engines", ["a steam engine"], ["rails"], ["feathers"])
    domain = PromptDomain.load(tmp_path)
    assert domain == PromptDomain(
        "engines", frozenset({"flower", "sea", "night", "steam", "engine", "bridge", "rails"}), ("a steam engine",)
    )
    own = text()
    own.domain = domain
    assert not outside(own, "two engines")
    assert PromptDomain.load(tmp_path / "nowhere") is None
    captions.write_text("file,label\n1.png,sea\n")
    with pytest.raises(ValueError, match="lacks the column"):
        things(captions)
    assert outside(own, "x") == (Near(domain, own.tokenizer, own.table)("x") < NEAR)
