"""Pictures as people keep them, in a folder and in a zip: turned, transparent, of 16 bits, broken; crops by value; CSVs."""

import io
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import vqvae

from coolsd.data import pictures
from coolsd.data.pictures import Record, attempt, opener, read_pictures, read_records, square
from coolsd.models.vq import ImageTokenizer
from coolsd.training import crops
from coolsd.training.encode import encode_to
from coolsd.training.tokens import Photos

RED, BLUE = (200, 30, 40), (20, 40, 200)


def encoded(picture: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def halves() -> Image.Image:
    """Left red, right blue, twice as wide as high."""
    picture = Image.new("RGB", (32, 16), RED)
    picture.paste(BLUE, (16, 0, 32, 16))
    return picture


def turned(orientation: int, broken: bool = False) -> bytes:
    """A JPEG that says how it is turned; `broken`: beside a tag whose type is not the one it should have."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    if broken:
        exif[0x0100] = 300
    content = encoded(halves(), "JPEG", exif=exif, quality=95)
    if not broken:
        return content
    at = content.index(b"\x01\x00\x00\x04" if b"\x01\x00\x00\x04" in content else b"\x01\x00\x00\x03")
    return content[: at + 2] + b"\x00\x01" + content[at + 4 :]


def palette() -> bytes:
    picture = Image.new("P", (8, 8), 0)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.paste(1, (4, 0, 8, 8))
    return encoded(picture, "GIF", transparency=0)


GREY = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
ALBUM = {
    "plain.png": encoded(halves(), "PNG"),
    "turned.jpg": turned(6),
    "notes.jpg": turned(6, broken=True),
    "clear.png": encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "PNG"),
    "half.png": encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 128)), "PNG"),
    "key.png": encoded(Image.new("RGB", (8, 8), (255, 0, 0)), "PNG", transparency=(255, 0, 0)),
    "palette.gif": palette(),
    "grey16.png": encoded(Image.fromarray(GREY), "PNG"),
    "cut.png": encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)), "PNG")[:4000],
    "text.png": b"no picture",
    "float.tiff": encoded(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"),
}
USABLE = [name for name in ALBUM if name not in ("cut.png", "text.png", "float.tiff")]


@pytest.fixture(scope="module", params=["folder", "zip"])
def album(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("album")
    if request.param == "folder":
        for name, content in ALBUM.items():
            (root / name).write_bytes(content)
        return root
    with ZipFile(root / "album.zip", "w", ZIP_DEFLATED) as archive:
        for name, content in ALBUM.items():
            archive.writestr(name, content)
    return root / "album.zip"


def middle(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    return picture.getpixel((int(x * picture.width), int(y * picture.height)))


@pytest.mark.parametrize("name", ["turned.jpg", "notes.jpg"])
def test_pictures_are_turned_upright_whatever_else_their_notes_say(album, name):
    picture = opener(album)(name)
    assert picture.size == (16, 32)
    assert np.abs(np.subtract(middle(picture, 0.5, 0.2), RED)).max() < 25
    assert np.abs(np.subtract(middle(picture, 0.5, 0.8), BLUE)).max() < 25


def test_every_orientation_is_the_one_that_the_library_turns(tmp_path):
    from PIL import ImageOps

    for orientation in range(1, 9):
        (tmp_path / "a.jpg").write_bytes(turned(orientation))
        with Image.open(tmp_path / "a.jpg") as picture:
            expected = ImageOps.exif_transpose(picture).convert("RGB")
        assert opener(tmp_path)("a.jpg").tobytes() == expected.tobytes()


def test_what_is_transparent_shows_the_ground(album):
    open_picture = opener(album)
    for name in ("clear.png", "key.png"):
        assert open_picture(name).getcolors() == [(64, pictures.GROUND)]
    assert np.abs(np.subtract(middle(open_picture("half.png"), 0.5, 0.5), (255, 127, 127))).max() <= 1
    assert [middle(open_picture("palette.gif"), x, 0.5) for x in (0.2, 0.8)] == [pictures.GROUND, (0, 0, 255)]


def test_sixteen_bits_are_scaled_to_eight(album):
    view = np.asarray(opener(album)("grey16.png"))[..., 0].astype(int)
    assert np.abs(view - GREY / 257).max() <= 0.5 + 1e-6


def test_what_cannot_be_used_is_counted_once_and_ends_nothing(album):
    rows, skipped = [Record(name, "x", "train") for name in (*ALBUM, "gone.png", "")], {}
    result = [rows[number].file for number, _ in read_pictures(album, rows, skipped)]
    assert result == USABLE
    assert skipped.keys() == {"cut.png", "text.png", "float.tiff", "gone.png", ""}
    assert skipped["gone.png"] == "missing"
    assert {skipped[name] for name in ("cut.png", "text.png", "float.tiff")} == {"unreadable"}


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyError, TypeError, Image.DecompressionBombError])
def test_whatever_a_decoder_raises_is_an_unreadable_picture(error):
    def decoder(name: str) -> Image.Image:
        raise error(name)

    assert attempt(decoder, "a.avif") == "unreadable"


def test_a_zip_with_damaged_bytes_ends_nothing(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    with ZipFile(tmp_path / "a.zip", "w", ZIP_DEFLATED) as archive:
        archive.writestr("bad.bmp", encoded(Image.fromarray(noise), "BMP"))
        archive.writestr("good.bmp", encoded(halves(), "BMP"))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[200:400] = bytes(200)
    (tmp_path / "a.zip").write_bytes(content)
    skipped = {}
    result = list(read_pictures(tmp_path / "a.zip", [Record("bad.bmp", "", ""), Record("good.bmp", "", "")], skipped))
    assert [number for number, _ in result] == [1]
    assert skipped == {"bad.bmp": "unreadable"}


def test_a_stream_of_crops_reads_a_zip_in_processes_of_its_own(album):
    rows = [Record(name, "x", "train") for name in ALBUM]
    stream = crops.Crops(album, rows, "train", 16, 0)
    alone, helped = (next(crops.batches(stream, len(rows), 0, {}, workers))[0] for workers in (0, 1))
    assert len(alone) == len(USABLE)
    assert torch.equal(alone, helped)


def test_a_crop_lies_where_it_was_asked_for():
    """Red counts columns, green rows: their means tell where a crop lies."""
    y, x = np.mgrid[:40, :60].astype(np.uint8)
    picture = Image.fromarray(np.stack([x, y, x * 0], -1))
    for x, y in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.25, 0.75)):
        crop = (square(picture, 32, zoom=1.25, x=x, y=y) + 1) * 127.5
        assert crop[..., 0].mean() == pytest.approx(x * (60 - 32) + 15.5, abs=0.3)
        assert crop[..., 1].mean() == pytest.approx(y * (40 - 32) + 15.5, abs=0.3)
        assert crop[0, -1, 0] > crop[0, 0, 0]
        assert square(picture, 32, zoom=1.25, x=x, y=y, flip=True)[0, 0, 0] == square(picture, 32, zoom=1.25, x=x, y=y)[0, -1, 0]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_csv_in_another_encoding_is_named(tmp_path, encoding):
    (tmp_path / "a.csv").write_text("file,label\na.png,Blüte\n", encoding=encoding)
    with pytest.raises(ValueError, match=r"a\.csv is not in UTF-8"):
        read_records(tmp_path / "a.csv")


def test_spaces_in_a_csvs_head_and_long_fields_are_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text(f"file, label , caption\na.png, rose,{'x' * 200_000}\n")
    row = read_records(tmp_path / "a.csv")[0]
    assert (row.file, row.label, len(row.caption)) == ("a.png", "rose", 200_000)
    (tmp_path / "b.csv").write_text('file,label\n"a.png,rose\n' + "y" * 10)
    assert read_records(tmp_path / "b.csv")[0].label == ""


# ---- results on disk


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (16, 16, 3), dtype=np.uint8))


def lines(folder: Path, *names: str) -> Path:
    (folder / "a.csv").write_text("file,split,captions\n" + "".join(f"{name}.png,train,{name}\n" for name in names))
    return folder / "a.csv"


def test_tokens_belong_to_a_picture_wherever_its_line_stands_and_are_made_anew_when_it_is_replaced(tmp_path):
    tokenizer, out = ImageTokenizer(vqvae(), 4), tmp_path / "tokens"
    for i, name in enumerate("abc"):
        noise(i).save(tmp_path / f"{name}.png")

    def encode(*names: str) -> dict[str, list[np.ndarray]]:
        """Tokens of all variants by caption."""
        index = lines(tmp_path, *names)
        encode_to(out, tmp_path, read_records(index), tokenizer, 3)
        photos = Photos(out, index, "train")
        return {photos.captions[i][0]: tokens for i, tokens in photos.variants.items()}

    def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    first = encode("a", "b")
    assert [len(tokens) for tokens in first.values()] == [3, 3]
    assert not same(first["a"], first["b"])
    files = len(list(out.glob("*.npz")))
    moved = encode("c", "b", "a")
    assert moved.keys() == {"a", "b", "c"}
    assert same(moved["a"], first["a"])
    assert same(moved["b"], first["b"])
    assert len(list(out.glob("*.npz"))) == files + 3  # the new one in each variant, and nothing again
    noise(9).save(tmp_path / "b.png")
    replaced = encode("c", "b", "a")
    assert not same(replaced["b"], first["b"])
    assert same(replaced["a"], first["a"])
    plain = torch.from_numpy(square(noise(9), 16)).permute(2, 0, 1)[None]
    assert replaced["b"][0].tolist() == tokenizer.encode(plain)[0].tolist()
    assert same(encode("b")["b"], replaced["b"])
    np.savez(out / "tokens_0_000.npz", rows=np.arange(2), tokens=np.zeros((2, 16), np.uint16))
    with pytest.raises(ValueError, match="does not say which pictures"):
        encode("a", "b")


def test_each_unusable_picture_is_named_once_for_all_variants(tmp_path):
    noise(0).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    records = read_records(lines(tmp_path, "a", "b", "gone"))
    skipped = encode_to(tmp_path / "tokens", tmp_path, records, ImageTokenizer(vqvae(), 4), 3)
    assert skipped == {"b.png": "unreadable", "gone.png": "missing"}
    unreadable = {}
    stream = crops.batches(crops.Crops(tmp_path, records, "train", 16, 0), 3, 0, unreadable)
    for _ in range(4):
        next(stream)
    assert unreadable == skipped
