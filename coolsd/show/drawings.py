"""Runs as pictures for slides: the lanes beside each other with their numbers, and their race as a GIF.

Drawn from finished pictures and rounds; a picture before its end is the finished one with the cells still to come covered. The one font at
hand everywhere, Pillow's own, has Latin letters only: other signs are spelled out or dropped.
"""

import io
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from PIL import Image, ImageColor, ImageDraw, ImageFont

from ..methods import METHODS
from ..trace import Run
from .account import counts, title

WIDTH, EDGE = 1024, 28  # of the sheet, and around and between its parts
GIF_WIDTH = 720
SIDE = 640  # most that a picture is drawn large
PAPER, INK, FAINT, COVER = "#ffffff", "#18181b", "#5b5b66", "#d8d8de"
COLOURS = {"accepted": "#009E73", "relaxed": "#CC79A7", "recovered": "#D55E00", "bonus": "#56B4E9", "sampled": "#9A9AA2"}
NAMES = {"relaxed": "only because relaxed"}
SPELLED = str.maketrans({"δ": "delta", "ω": "omega", "λ": "lambda", "×": "x", "–": "-", "—": "-", "’": "'", "…": "..."})
FRAMES_A_SECOND, LAST_SECONDS = 10, 2.5
SHORTEST, LONGEST, USUAL = 3.0, 12.0, 8.0  # seconds a race is shown in real time, and the length it is brought to otherwise


def ascii_text(text: str) -> str:
    """Text in signs that Pillow's font has."""
    plain = unicodedata.normalize("NFKD", text.translate(SPELLED)).encode("ascii", "ignore").decode()
    return plain if plain.strip() else "?"


def sheet(lanes: Mapping[str, Run]) -> Image.Image:
    """The lanes beside each other, WIDTH pixels wide: pictures, how their tokens came, and the numbers.

    Raises:
        ValueError: a lane has no picture.
    """
    return Layout(lanes, WIDTH).frame([len(run.rounds) for run in lanes.values()], None)


def gif(lanes: Mapping[str, Run]) -> bytes:
    """The race as a GIF: at every moment each lane shows the tokens that its own clock had reached.

    A race of SHORTEST to LONGEST seconds is shown in real time, another one slowed down or sped up to USUAL seconds; the pace is written on
    it. It ends with the finished lanes, and starts again.

    Raises:
        ValueError: a lane has no picture.
    """
    layout = Layout(lanes, GIF_WIDTH)
    clocks = [list(accumulate(event.seconds for event in run.rounds)) for run in lanes.values()]
    total = max((clock[-1] for clock in clocks if clock), default=0.0)
    duration = total if SHORTEST <= total <= LONGEST else USUAL
    count = max(2, round(duration * FRAMES_A_SECOND))
    final = layout.frame([len(clock) for clock in clocks], Moment(total, total, duration))
    palette = _palette(final)
    frames = []
    for i in range(count):
        now = total * i / (count - 1)
        frame = layout.frame([bisect_right(clock, now) for clock in clocks], Moment(now, total, duration))
        frames.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
    buffer = io.BytesIO()
    durations = [round(1000 * duration / count)] * (count - 1) + [round(1000 * LAST_SECONDS)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return buffer.getvalue()


def _palette(final: Image.Image) -> Image.Image:
    """The colours of a race: those of its last frame, with the few that carry meaning kept as they are."""
    fixed = [ImageColor.getrgb(colour) for colour in (*COLOURS.values(), PAPER, INK, FAINT, COVER)]
    count = 256 - len(fixed)
    colours = final.quantize(count, dither=Image.Dither.NONE).getpalette()[: 3 * count]
    image = Image.new("P", (1, 1))
    image.putpalette([*(channel for colour in fixed for channel in colour), *colours])
    return image


@dataclass(frozen=True)
class Moment:
    """A time of a race: seconds on the lanes' clocks, seconds of the slowest lane, and seconds the race is shown for."""

    now: float
    total: float
    duration: float

    @property
    def pace(self) -> str:
        """How fast the race is shown."""
        ratio = self.total / self.duration if self.duration else 1.0
        return "real time" if 0.99 < ratio < 1.01 else f"{ratio:.2g} x real time"


class Layout:
    """Where the parts of a drawing lie, and the drawing at any number of rounds."""

    def __init__(self, lanes: Mapping[str, Run], width: int):
        if missing := [name for name, run in lanes.items() if run.image is None]:
            raise ValueError(f"There is no picture of the lane {missing[0]!r}: decode its tokens first.")
        self.runs = list(lanes.values())
        self.scale = width / WIDTH
        self.width, self.edge = width, round(EDGE * self.scale)
        count = len(self.runs)
        self.side = min((width - self.edge * (count + 1)) // count, round(SIDE * self.scale))
        self.left = [(width - count * (self.side + self.edge) + self.edge) // 2 + i * (self.side + self.edge) for i in range(count)]
        self.pictures = [run.image.convert("RGBA").resize((self.side, self.side), Image.Resampling.LANCZOS) for run in self.runs]
        self.top = self.edge + self._px(40) + self._px(34)
        self.height = self.top + self.side + self._px(3 * 28 + 90) + self.edge

    def _px(self, size: float) -> int:
        return round(size * self.scale)

    def frame(self, done: Sequence[int], moment: Moment | None) -> Image.Image:
        """The drawing after so many rounds of each lane; moment: of a race, None for a still."""
        image = Image.new("RGB", (self.width, self.height), PAPER)
        draw = ImageDraw.Draw(image)
        first = self.runs[0]
        self._text(draw, (self.edge, self.edge), first.settings.prompt, 28, INK, self.width - 2 * self.edge)
        for run, picture, x0, rounds in zip(self.runs, self.pictures, self.left, done, strict=True):
            part = run if rounds == len(run.rounds) else _part(run, rounds)
            self._text(draw, (x0, self.top - self._px(34)), title(run), 22, INK, self.side)
            image.paste(COVER, (x0, self.top, x0 + self.side, self.top + self.side))
            uncovered = _covered(picture, len(part.tokens), run.grid)
            image.paste(uncovered, (x0, self.top), uncovered)
            self._numbers(draw, part, x0, ended=rounds == len(run.rounds), moment=moment)
        self._foot(draw, first, moment)
        return image

    def _numbers(self, draw: ImageDraw.ImageDraw, run: Run, left: int, ended: bool, moment: Moment | None) -> None:
        y, s = self.top + self.side + self._px(8), run.stats
        ways, at, thick = counts(run), float(left), self._px(10)
        cell = self.side / (run.grid[0] * run.grid[1])
        for name, count in ways.items():
            draw.rectangle((round(at), y, round(at + count * cell), y + thick), fill=COLOURS[name])
            at += count * cell
        lines = [f"{s.target_calls} target calls, {s.accept_length:.2f} tokens a call", f"{s.seconds:.2f} s"]
        lines[1] += " in all" if moment and ended else f", {s.tokens} tokens" if moment else f", {s.tokens_per_second:.0f} tokens a second"
        exact = METHODS[run.settings.method].lossless
        lines.append("bias 0: the target's distribution" if exact else f"bias {s.bias_per_token:.2g} a token")
        for i, line in enumerate(lines):
            self._text(draw, (left, y + thick + self._px(10 + 28 * i)), line, 20, INK if i < 2 else FAINT, self.side)

    def _foot(self, draw: ImageDraw.ImageDraw, run: Run, moment: Moment | None) -> None:
        y, x = self.height - self.edge - self._px(42), self.edge
        for name, colour in COLOURS.items():
            draw.rectangle((x, y + self._px(2), x + self._px(14), y + self._px(16)), fill=colour)
            x += self._px(22)
            x += self._text(draw, (x, y), NAMES.get(name, name), 16, FAINT, self.width) + self._px(20)
        device = ", ".join(str(run.environment[name]) for name in ("device", "dtype") if name in run.environment)
        words = f"COOL-SD demo; {run.target}{', on ' + device if device else ''}; seed {run.settings.seed}; recorded"
        if moment:
            words = f"clock {moment.now:.2f} s, shown at {moment.pace}; finished pictures, uncovered; {words}"
        self._text(draw, (self.edge, y + self._px(24)), words, 16, FAINT, self.width - 2 * self.edge)

    def _text(self, draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, size: float, colour: str, workspace: int) -> int:
        """Draw text, cut where it is wider than the room; returns its width."""
        font, text = ImageFont.load_default(self._px(size)), ascii_text(text)
        if draw.textlength(text, font) > workspace:
            while text and draw.textlength(text + "...", font) > workspace:
                text = text[:-1]
            text += "..."
        draw.text(place, text, colour, font)
        return round(draw.textlength(text, font))


def _part(run: Run, rounds: int) -> Run:
    return replace(run, rounds=run.rounds[:rounds], image=None)


def _covered(picture: Image.Image, tokens: int, grid: tuple[int, int]) -> Image.Image:
    """The picture with only its first `tokens` cells, transparent behind them."""
    rows, columns = grid
    if tokens >= rows * columns:
        return picture
    mask = Image.new("L", picture.size, 0)
    draw = ImageDraw.Draw(mask)
    whole, rest = divmod(tokens, columns)
    down = [round(picture.height * row / rows) for row in range(rows + 1)]
    if whole:
        draw.rectangle((0, 0, picture.width, down[whole] - 1), fill=255)
    if rest:
        draw.rectangle((0, down[whole], round(picture.width * rest / columns) - 1, down[whole + 1] - 1), fill=255)
    uncovered = picture.copy()
    uncovered.putalpha(Image.composite(picture.getchannel("A"), mask, mask))
    return uncovered
