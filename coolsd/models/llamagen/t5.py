"""LlamaGen's text path: caption cleaning, the flan-t5 encoder, features moved to the right end.

Source: LlamaGen (Sun et al., 2024), whose captions were cleaned as DeepFloyd IF's were; the steps are reimplemented. Where that uses
ftfy and an HTML parser of its own, the standard library has to do: repaired encodings are the only difference.
"""

import html
import re
from collections import OrderedDict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_plus

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn

from ..checkpoints import LoadError, first_file, read_json, read_tokenizer
from .network import Conditioning

REMEMBERED = 256  # prompts whose features are kept
DASHES = "֊־᐀᠆‐-―⸗⸚⸺⸻⹀〜〰゠︱︲﹘﹣－"

# What is dropped or rewritten, in this order, before and after the punctuation is thinned out.
BEFORE = [
    (r"<person>", "person"),
    (r"\b(?:https?:|www\.|[a-z0-9.-]+\.(?:com|co|ru|net|org|edu|gov|it)\b)[^\s<>\"]*", ""),
    ("HTML", ""),  # markup to text, see _text
    (r"@[\w\d]+\b", ""),
    (r"[\u31c0-\u9fff]+", ""),
    (f"[{DASHES}]+", "-"),
    (r"[`´«»“”¨]", '"'),
    (r"[‘’]", "'"),
    (r"&quot;?|&amp;?", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # addresses
    (r"\b\d:\d\d\s*$", ""),  # times at the end
    (r"\\n", " "),
    (r"#\d{1,5}\b|\b\d{6,}\b", ""),
    (r"\S+\.(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)\b", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
]
AFTER = [
    (r"\b[a-z]{0,3}\d{3,15}\b|\b[a-z]+\d+[a-z]+\b|\b[a-z]+\d+[a-z]*\d+\w*\b", ""),  # ids such as jc6640
    (r"(?:worldwide\s+)?free\s+shipping|(?:free\s)?download(?:\sfree)?|\bclick\b\s(?:for|on)\s\w+", ""),
    (r"\b(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)(?:\simages?)?\b|\bpage\s+\d+\b", ""),
    (r"\b\d+\.?\d*[x×]\d+\.?\d*\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
]


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")


def _text(markup: str) -> str:
    parser = _Text()
    parser.feed(markup)
    parser.close()
    return "".join(parser.parts)


def _clean_once(caption: str) -> str:
    caption = unquote_plus(caption).strip().lower()
    for pattern, replacement in BEFORE:
        caption = _text(caption) if pattern == "HTML" else re.sub(pattern, replacement, caption)
    if len(re.findall(r"[-_]", caption)) > 3:
        caption = re.sub(r"[-_]", " ", caption)
    caption = html.unescape(html.unescape(caption)).strip()
    for pattern, replacement in AFTER:
        caption = re.sub(pattern, replacement, caption)
    caption = re.sub(r"^[\"'](.+)[\"']$", r"\1", caption.strip())
    return re.sub(r"^['_,\-:;]+|['_,\-:+]+$|^\.(?=\S+$)", "", caption).strip()


def clean(caption: str) -> str:
    """The caption as LlamaGen saw captions in training: lower case, no markup, addresses, ids, brackets or Chinese; may be empty."""
    return _clean_once(_clean_once(caption))


def left_pad(features: Tensor, valid: Tensor) -> Conditioning:
    """Move the real rows of right-padded features (C, width) to the end; padded rows, which the encoder does not leave zero, become so."""
    count = int(valid.sum())
    moved = torch.cat([features[count:], features[:count]])
    mask = valid.flip(0).bool()
    return Conditioning(moved * mask[:, None], mask)


class T5Text:
    """Prompt to Conditioning through a T5 encoder. The encoder is on `device` only while it encodes; features are remembered.

    Args:
        encoder: gives `last_hidden_state`. tokenizer: ends every text with its end token. length: condition tokens.
    """

    def __init__(self, encoder: nn.Module, tokenizer: Tokenizer, length: int, device: str = "cpu"):
        self.encoder, self.tokenizer, self.length, self.device = encoder.eval().requires_grad_(False), tokenizer, length, device
        self.tokenizer.enable_truncation(length)
        self.tokenizer.enable_padding(length=length)
        self._known: OrderedDict[str, Conditioning] = OrderedDict()

    def __call__(self, prompt: str) -> Conditioning:
        """Left-padded features of one prompt, on the CPU."""
        if prompt not in self._known:
            self._known[prompt] = self._encode(clean(prompt))
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[prompt]

    def unread(self, prompt: str) -> str:
        """The end of a prompt that does not fit, as it was cleaned; empty where all of it does."""
        caption = clean(prompt)
        rest = self.tokenizer.encode(caption).overflowing
        return caption[rest[0].offsets[0][0] :] if rest else ""

    @torch.no_grad()
    def _encode(self, caption: str) -> Conditioning:
        encoded = self.tokenizer.encode(caption)
        ids, mask = (torch.tensor([row], device=self.device) for row in (encoded.ids, encoded.attention_mask))
        try:
            features = self.encoder.to(self.device)(input_ids=ids, attention_mask=mask).last_hidden_state[0]
        finally:
            self.encoder.to("cpu")
        return left_pad(features.cpu(), mask[0].cpu())


def load_t5(folder: Path, length: int, width: int, device: str) -> T5Text:
    """flan-t5's encoder from its folder, in bfloat16: in float16 it gives NaN.

    Raises:
        LoadError: files that are missing, or another width than `width`.
    """
    from transformers import T5EncoderModel

    own_width = read_json(folder / "config.json").get("d_model")
    if own_width != width:
        raise LoadError(f"text encoder: {folder} gives features of width {own_width}, the target was made for {width} (flan-t5-xl).")
    weights = first_file(folder, ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"))
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    try:
        encoder, info = T5EncoderModel.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True, output_loading_info=True)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise LoadError(f"text encoder: {weights.name} in {folder} cannot be read ({str(error).splitlines()[0]}).") from error
    if info["missing_keys"] or info["mismatched_keys"]:
        wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise LoadError(f"text encoder: {len(wrong)} tensors are missing or do not fit in {folder} (first: {wrong[0]}).")
    return T5Text(encoder, tokenizer, length, device)
