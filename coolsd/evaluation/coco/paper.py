"""What the paper reports on MS-COCO 2017 val (arXiv 2601.09212, its main table), to stand beside what is measured here.

Its precision, GPU and number of prompts are not stated. CLIP is a cosine, latency is in seconds.
"""

from dataclasses import dataclass

SOURCE = "arXiv 2601.09212, main table, MS-COCO 2017 val"


@dataclass(frozen=True)
class Reported:
    """A row of that table."""

    method: str
    clip: float
    fid: float
    reward: float
    accept_length: float
    seconds: float
    speedup: float


LUMINA = (
    Reported("target, AR", 0.3330, 28.99, 0.6855, 1.00, 170.14, 1.00),
    Reported("Eagle-1", 0.3330, 29.05, 0.6883, 2.76, 71.66, 2.37),
    Reported("LANTERN++", 0.3328, 30.31, 0.6697, 2.99, 68.64, 2.48),
    Reported("COOL-SD δ=1.1", 0.3325, 30.30, 0.6699, 3.11, 63.24, 2.69),
)
LLAMAGEN = (
    Reported("Eagle-1", 0.3157, 20.97, -0.0859, 2.42, 4.99, 2.03),
    Reported("LANTERN++", 0.3157, 21.17, -0.1155, 2.67, 4.70, 2.15),
    Reported("COOL-SD δ=1.1", 0.3167, 21.02, -0.0997, 2.73, 4.46, 2.27),
    Reported("COOL-SD δ=2", 0.3154, 21.20, -0.1353, 3.34, 3.72, 2.72),
)
PAPER = {"llamagen-256": ("LlamaGen-XL, 775 M", LLAMAGEN), "lumina-768": ("Lumina-mGPT, 7 B", LUMINA)}  # by target: what the paper calls it
