"""Janus-Pro's pair from a folder in transformers' layout. Everything is checked before anything runs; nothing is downloaded here."""

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import JanusConfig as ReleasedConfig

from ..checkpoints import SIZES, LoadError, fill, read_flag, read_folder, read_json, read_number, read_sizes, read_tokenizer
from ..eagle import Eagle, build_drafter
from ..pair import WORDS, Build
from ..vq import check_codes, janus_vq
from .network import Janus, JanusConfig
from .session import Ids, JanusPair, JanusPrompt, drafter_sizes

START = "<begin_of_image>"
LOOKING = ("model.vision_model.", "model.aligner.", "lm_head.")  # tensors of the path that looks at pictures and writes text
VQ = "model.vqmodel."


def load_janus(name: str, expected: JanusConfig, target: Path, drafter: Path | str = "none", device: str = "cpu") -> JanusPair:
    """Janus-Pro as transformers' `JanusForConditionalGeneration` saves it, its picture tokenizer included.

    Args:
        expected: sizes of the released model.
        target: the folder. drafter: a folder as `train drafter` writes it, or "none".
        device: not used; nothing but target and drafter works on it.
    """
    target = Path(target)
    released = released_config(target)
    config = janus_config(target, released, expected)
    state = {k: v for k, v in read_folder(target).items() if not k.startswith(LOOKING)}
    if not any(k.startswith("model.generation_head.") for k in state):
        raise LoadError(f"{target} has no model.generation_head; it is no Janus in transformers' layout (`JanusForConditionalGeneration`).")
    pixels = {k.removeprefix(VQ): v for k, v in state.items() if k.startswith(VQ)}
    with torch.device("meta"):
        model = Janus(config)
    fill(model, {k.removeprefix("model."): v for k, v in state.items() if not k.startswith(VQ)}, "target")
    tokenizer = janus_vq(released.vq_config, pixels, config.grid)
    check_codes(tokenizer, config.codes)
    words = read_tokenizer(target / "tokenizer.json")
    eagle = None if drafter == "none" else load_drafter(Path(drafter), config)
    return JanusPair(name, model, eagle, tokenizer, JanusPrompt(words, prompt_ids(target, released, words)))


def random_janus(name: str, config: JanusConfig, build: Build, layers: int | None = None) -> JanusPair:
    """A pair of these sizes without weights of its own, for timing its passes; it makes no pictures.

    Args:
        build: makes a model from its class and sizes. layers: of the target; None: all.
    """
    config = config if layers is None else replace(config, layers=layers)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    return JanusPair(name, build(Janus, config), build(Eagle, drafter_sizes(config)), None, JanusPrompt(words, Ids(0, 1, 2)))


def released_config(folder: Path) -> ReleasedConfig:
    """The folder's config.json as transformers reads it, with its defaults for what the file leaves out."""
    data = read_json(folder / "config.json")
    if data.get("model_type") != "janus":
        raise LoadError(f"config.json in {folder} describes a model of type {data.get('model_type')!r:.40}, not a Janus.")
    try:
        return ReleasedConfig.from_dict(data)
    except Exception as error:  # the library checks values and their types, each with errors of its own
        raise LoadError(f"config.json in {folder} describes no Janus ({str(error).splitlines()[0]}).") from error


def janus_config(folder: Path, released: ReleasedConfig, expected: JanusConfig) -> JanusConfig:
    """Sizes from a released configuration; they must be those of the model that was asked for.

    Raises:
        LoadError: another model, or one that is computed in another way.
    """
    text, vq, tokens = released.text_config, released.vq_config, released.vision_config.num_image_tokens
    sizes = {ours: getattr(text, theirs) for ours, theirs in (SIZES | {"layers": "num_hidden_layers"}).items()}
    sizes |= {"codes": vq.num_embeddings, "code_dim": vq.embed_dim, "grid": round(tokens**0.5)}
    for ours, theirs in sizes.items():
        if getattr(expected, ours) != theirs:
            raise LoadError(
                f"{folder} is another model than the one asked for: {ours} is {theirs}, and {getattr(expected, ours)} is expected."
            )
    rope = text.rope_parameters or {}
    for what, value, usual in (
        ("num_key_value_heads", text.num_key_value_heads, text.num_attention_heads),
        ("rope_type", rope.get("rope_type", "default"), "default"),
        ("hidden_act", text.hidden_act, "silu"),
    ):
        if value != usual:
            raise LoadError(f"config.json in {folder} gives {what} as {value!r:.40}; {usual!r} is expected.")
    return JanusConfig(**sizes, norm_eps=text.rms_norm_eps, rope_base=rope.get("rope_theta", expected.rope_base))


def prompt_ids(folder: Path, released: ReleasedConfig, words: Tokenizer) -> Ids:
    """The ids that transformers' image mode builds its branches from: those of the generation_config.json, else of the configuration."""
    path = folder / "generation_config.json"
    data = read_json(path) if path.exists() else {}
    start = (data.get("generation_kwargs") or data).get("boi_token_id", words.token_to_id(START))
    bos, pad = (data.get(name, getattr(released.text_config, name)) for name in ("bos_token_id", "pad_token_id"))
    for what, value in (("bos_token_id", bos), ("pad_token_id", pad), (f"boi_token_id, nor its tokenizer {START}", start)):
        if type(value) is not int or not 0 <= value < released.text_config.vocab_size:
            raise LoadError(f"{folder} does not give {what} as a token of its vocabulary; copy generation_config.json again.")
    return Ids(bos, pad, start)


def load_drafter(folder: Path, target: JanusConfig) -> Eagle:
    """A drafter's folder, as `train drafter` writes it.

    Raises:
        LoadError: missing or broken files, or a drafter of another target.
    """
    data = read_json(folder / "config.json")
    sizes, ours = read_sizes(folder, data, SIZES), drafter_sizes(target)
    for name in ("vocab", "dim", "heads"):
        if sizes[name] != getattr(ours, name):
            raise LoadError(f"The drafter was made for another target: {name} is {sizes[name]}, not {getattr(ours, name)}.")
    norm_eps, bias = read_number(folder, data, "rms_norm_eps", ours.norm_eps), read_flag(folder, data, "bias", True)
    return build_drafter(replace(ours, ffn=sizes["ffn"], norm_eps=norm_eps, bias=bias), read_folder(folder))
