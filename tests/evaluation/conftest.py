"""Fixtures of the evaluations."""

import numpy as np
import pytest
from albums import SHADES
from PIL import Image


@pytest.fixture
def album(tmp_path):
    """Noisy pictures of four kinds with their captions; one is missing and one is no picture."""
    folder, random = tmp_path / "album", np.random.default_rng(0)
    folder.mkdir()
    lines = ["file,label,split,captions"]
    for i in range(48):
        kind = list(SHADES)[i % 4]
        noise = random.integers(-25, 25, (20, 24, 3))
        Image.fromarray((np.array(SHADES[kind]) + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{kind},{'valid' if i >= 32 else 'train'},{'a red rose|a rose' if kind == 'rose' else 'a ' + kind}")
    (folder / "broken.png").write_bytes(b"no picture")
    lines += ["gone.png,sea,valid,the sea", "broken.png,sea,train,the sea"]
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder
