"""The page's words: what each number means, the targets, the examples and the About tab."""

from collections.abc import Mapping

from ..methods import Method
from ..models.catalog import TargetStatus

NAME = "COOL-SD"
DESCRIPTION = (
    "See relaxed speculative decoding (COOL-SD) draw pictures token by token: which tokens were guessed, which were accepted only because "
    "the rule is relaxed, what it saves and what it costs. A small model, live on any computer."
)

EXAMPLES = (
    "a pink rose on a dark background",
    "misty forest",
    "sunset over the sea",
    "a sunflower",
)

# Titles of pop-ups, in place of gradio's "Error".
CHANGE = "Please change one thing"
RUNNING = "Already running"
FULL = "Please wait a minute"
FAILED = "The run failed"

# key: (label, definition). Shown on hover and focus, and listed in About.
DEFINITIONS = {
    "seconds": (
        "seconds",
        "Time spent decoding tokens: drafting, target passes, verification and bookkeeping. "
        "Loading, warm-up and turning tokens into pixels are not in it.",
    ),
    "calls": ("target calls", "Passes through the target model, the one for the prompt included. One call is one round."),
    "length": ("tokens/call", "Accept length: tokens ÷ target calls, with recovered and bonus tokens counted. Plain AR is 1."),
    "tokens": ("tokens", "Image tokens emitted so far, out of the whole grid."),
    "rate": ("tokens/s", "Tokens ÷ seconds."),
    "drafts": ("draft calls", "Passes through the drafter, counted apart: each costs a small part of a target call."),
    "bias": (
        "bias spent",
        "Sum over examined draft positions of the exact one-step total variation Σ[q·f − p]₊, divided by the tokens: at 0.13, "
        "of 100 tokens up to 13 are not the target's. 0 is exact. For LANTERN's own residual it is a lower bound (it can read 0 where "
        "the true step variation is not), for trees that relax every sibling an upper one.",
    ),
}

SPEEDUP = (
    "Tokens per second of the one lane ÷ tokens per second of the other; below 1× it is slower. From the median of neighbouring rounds of "
    "the two, which a busy computer slows alike; the range is a 95 % interval of this run's clock (bootstrap over rounds)."
)
CALLS = "Tokens per target call of the one lane ÷ the other's: a speedup that does not depend on the machine."
ESTIMATE = "Estimated where plain AR is no lane: prefill plus the median of a few measured AR steps on this machine, times the tokens."

TOKEN_KINDS = {
    "accepted": ("accepted", "drafted tokens that the lossless rule accepts too"),
    "relaxed": ("only because relaxed", "accepted here; the lossless rule would have rejected them with the same random number"),
    "recovered": ("recovered", "drawn from the residual after a rejection: G*, but in LANTERN's lanes its own"),
    "bonus": ("bonus", "drawn from the target after a whole draft was accepted"),
    "sampled": ("sampled", "drawn from the target without a draft: every token of plain AR, and the first of every picture"),
}

FILES = (
    "This page takes local files from `python app.py --files {name}.PART=PATH`, or from the same `{name}.PART=PATH` in the variable "
    "COOLSD_FILES; PART is {parts}."
)

ABOUT = """
## What you see

An autoregressive image model draws a picture one **token** at a time, and each token costs a pass through the large **target** model.
A small **drafter** guesses a few tokens ahead; one target pass then checks the whole guess. A drafted token *x* at draft position *i*
is accepted with probability

$$f_i = \\min\\left(1,\\; \\omega_i \\, \\frac{p(x)}{q(x)}\\right)$$

where *p* is the target's row of probabilities and *q* the drafter's. With ω = 1 this is **lossless** speculative decoding (the Eagle-1
lane): the picture follows exactly the target's distribution. Image tokens are ambiguous: many codes would do equally well, so *p* and
*q* rarely agree and lossless drafts are often thrown away. **COOL-SD** accepts a little more than it should, most at the start of a draft
and less later on:

$$\\omega_i = \\delta \\, e^{-\\nu i - \\mu}$$

After a rejection the next token is drawn from the residual $G^* = \\mathrm{Norm}([p - q f]_+)$, which keeps the damage of each step as
small as it can be.

## Three things to try

1. **Image tokens are ambiguous.** Look at the curve of Eagle-1: how often is even the first drafted token accepted?
2. **A little relaxation buys many calls, and its cost is metered.** Move δ from 1 to 2 and to 4; watch target calls and *bias spent*.
3. **Spend it early.** Set ν to 0 (the same ω everywhere) and to a negative value (late instead of early), each time with the δ that gives
   the same tokens/call: at the same δ they accept different amounts, and bias cannot be compared.

## From the paper, and derived here

| What | Where it comes from |
|---|---|
| f, the form of ω, ν = 0.7, δ as the only tuned knob, G* and its optimality | the paper (arXiv 2601.09212, AAAI 2026) |
| "mean-normalised schedule" | the paper's words; the closed form of μ (**μ auto**: the mean of ω is δ) is derived here |
| **clamp**: max(1, ω) | ours, not the paper's: late positions never stricter than lossless |
| draft length 5, temperature and guidance defaults | not stated in the paper: those of the code its baselines come from |
| bias spent a token | derived here: the one-step total variation that a token's law is off by, given what came before |

The authors have not released code; this is an independent implementation. The pictures here come from *meadow*, a small model made for
this page, so absolute figures differ from the paper's.

## The methods

"""

COUNTED_HEAD = """

## How each number is counted

"""

COUNTED = """

**Acceptance probability f (lines).** Mean over the rounds that looked at this draft position, all earlier ones having been accepted. For
block methods and traversal, which look at all positions at once: the chance that at least so many are accepted, over all rounds.

**Accepted share (bars).** Rounds that accepted this position ÷ rounds that drafted it.

**Recorded.** The run was stored with the page and decoded earlier, on the machine named beside it; nothing runs until you press Generate.

The lanes race on one clock, with the same prompt, seed and sampling: the next round is always that of the lane with the fewest seconds on
its own clock. No two rounds overlap, so no lane slows another, and a slow moment of the computer hits all alike. Where the lanes do not fit
into memory together they run one after the other, and the status line says so.
"""


def describe_target(target_status: TargetStatus) -> str:
    """What a target needs, in Markdown; empty for one that simply runs."""
    lines = [*target_status.missing, *target_status.advice]
    if not target_status.missing and not target_status.plan:
        return ""
    lines.append(FILES.format(name=target_status.name, parts=" or ".join(target_status.parts)))
    head = (
        f"**{target_status.title} cannot run here yet.** Until it can, choose meadow."
        if target_status.missing
        else f"**{target_status.title}**"
    )
    return "\n".join([head, "", *(f"- {line}" for line in lines)])


def list_methods(methods: Mapping[str, Method]) -> str:
    """What each method does, in Markdown."""
    return "\n".join(f"- **{m.title}**: {m.about} *{'Lossless' if m.lossless else 'Relaxed'}; {m.source}.*" for m in methods.values())


def about(methods: Mapping[str, Method]) -> str:
    """The About tab in Markdown."""
    numbers = [*DEFINITIONS.values(), ("speedup in seconds", SPEEDUP), ("speedup in target calls", CALLS), ("estimated", ESTIMATE)]
    meanings = "\n\n".join(f"**{label[0].upper()}{label[1:]}.** {meaning}" for label, meaning in numbers)
    return ABOUT + list_methods(methods) + COUNTED_HEAD + meanings + COUNTED
