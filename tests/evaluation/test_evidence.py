"""The evidence file: what is written is read again, and what is wrong is named."""

import json

import pytest

from coolsd.evaluation import evidence
from coolsd.models.checkpoints import ASSETS

FIGURE = {"mean": 3.0, "low": 2.9, "high": 3.1}
ROW = {"method": "coolsd", "label": "COOL-SD", "settings": {"delta": 2.0}, "columns": {"accept_length": FIGURE, "fid": FIGURE}}
FILE = {"evidence": 1, "title": "A title", "target": "llamagen-256", "rows": [ROW]}


def test_a_file_is_read_and_what_is_written_is_read_again(tmp_path):
    own = {"vqa": {"label": "VQA score", "axis": "cost", "better": "more"}}
    row = {**ROW, "columns": {**ROW["columns"], "vqa": FIGURE}, "thumbnails": ["data:image/webp;base64,AAAA"], "pictures": 500}
    finding = {"claim": "early beats late", "verdict": "holds", "words": "It does."}
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({**FILE, "columns": own, "rows": [ROW, row], "findings": [finding]}))
    read = evidence.read(path)
    assert [c.name for c in read.axis("gain")] == ["accept_length"]
    assert [c.name for c in read.axis("cost")] == ["fid", "vqa"]
    assert read.rows[1].columns["vqa"] == evidence.Figure(**FIGURE)
    assert read.rows[0].settings == {"delta": 2.0}
    assert read.findings[0].claim == "early beats late"
    path.write_text(json.dumps(read.to_dict()))
    assert evidence.read(path) == read


def change(**changes):
    return {**FILE, "rows": [{**ROW, **changes}]}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([], "the file"),
        ({**FILE, "evidence": 2}, "evidence is 2"),
        ({**FILE, "rows": []}, "rows"),
        (change(columns={"accept_length": FIGURE, "beauty": FIGURE}), "'beauty'"),
        (change(columns={"accept_length": FIGURE}), "axis 'cost'"),
        (change(columns={"accept_length": FIGURE, "fid": {**FIGURE, "low": 4}}), r"rows\[0\].columns.fid"),
        (change(columns={"accept_length": {"mean": 1}, "fid": FIGURE}), "lacks 'low'"),
        (change(settings={"delta": 99}), r"rows\[0\].settings.delta"),
        (change(settings={"beauty": 1}), "'beauty'"),
        (change(thumbnails=["https://example.org/a.png"]), "data URI"),
        (change(thumbnails=["data:image/webp;base64,AAAA"] * 4), "0 to 3"),
        ({**FILE, "findings": [{"claim": "x", "verdict": "agrees", "words": ""}]}, "verdict"),
    ],
)
def test_what_is_wrong_is_named(value, names):
    with pytest.raises(ValueError, match=names):
        evidence.from_plain(value)


def test_no_picture_that_ships_stands_for_another():
    """Pictures of other settings or prompts differ; one picture in many places would be a placeholder."""
    rows = evidence.read(ASSETS / "evidence.json").rows
    pictures = [picture for row in rows for picture in row.thumbnails]
    assert all(len(set(row.thumbnails)) == len(row.thumbnails) for row in rows)
    assert len(set(pictures)) >= 0.8 * len(pictures)  # lossless points of several curves draw the same
