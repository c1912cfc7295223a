"""The targets as a person is offered them: which run here, and exactly what the others lack."""

from dataclasses import dataclass, field

PLAIN = "Plain AR works without a drafter; `python -m coolsd train drafter` makes one."


@dataclass(frozen=True)
class Offer:
    """A target by name.

    Args:
        missing: what keeps it from being used here, one line each; empty when it runs. plan: what memory goes where.
        settings: what its authors sampled with. drafts: whether the catalog knows a drafter for it.
    """

    name: str
    title: str
    note: str = ""
    missing: tuple[str, ...] = ()
    plan: str = ""
    settings: dict[str, float] = field(default_factory=dict)
    drafts: bool = True

    @property
    def advice(self) -> list[str]:
        """What to know before choosing it, one line each."""
        return [line for line in (self.note, "" if self.drafts else PLAIN, self.plan) if line]


def offers() -> dict[str, Offer]:
    """All targets of the catalog, looked up anew; downloads nothing, loads nothing."""
    from .catalog import CATALOG, available  # imports transformers, which is slow: a page can be drawn before

    found = {}
    for name, entry in CATALOG.items():
        parts = ", ".join(f"{what} {size:g}" for what, size in entry.needs().items())
        plan = f"GPU memory in GB: {parts}; {entry.gigabytes():.1f} in all." if parts else ""
        drafts = not entry.parts or any(part.what == "drafter" for part in entry.parts)
        found[name] = Offer(name, entry.title, entry.note, tuple(available(name)), plan, dict(entry.settings), drafts)
    return found
