"""The targets as a person is offered them: which run here, and exactly what the others lack."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FORM = "TARGET.PART=PATH, for example llamagen-256.target=weights/t2i_XL_stage1_256.pt"
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


Files = Mapping[str, Mapping[str, str]]  # local paths by target and part, as `load` takes them


def read_files(entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Local files from TARGET.PART=PATH each; of two for the same part the later one counts. Whether a path exists, `offers` says.

    Raises:
        ValueError: another form, or a target or part that the catalog does not know.
    """
    files: dict[str, dict[str, str]] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        target, _, what = name.rpartition(".")
        if not (target and what and path):
            raise ValueError(f"{entry!r} is not {FORM}.")
        files.setdefault(target, {})[what] = path
    if files:
        from .catalog import check_parts  # as in `offers`

        for target, parts in files.items():
            check_parts(target, parts)
    return files


def offers(files: Files | None = None) -> dict[str, Offer]:
    """All targets of the catalog, looked up anew; downloads nothing, loads nothing.

    Args:
        files: local files in place of the hub's.
    """
    from .catalog import CATALOG, available  # imports transformers, which is slow: a page can be drawn before

    found = {}
    for name, entry in CATALOG.items():
        paths = (files or {}).get(name, {})
        needs = entry.needs(paths.get("drafter"))
        plan = f"GPU memory in GB: {', '.join(f'{what} {size:g}' for what, size in needs.items())}; {sum(needs.values()):.1f} in all."
        found[name] = Offer(
            name,
            entry.title,
            entry.note,
            tuple(available(name, **paths)),
            plan if needs else "",
            dict(entry.settings),
            drafts=not entry.parts or "drafter" in needs,
        )
    return found
