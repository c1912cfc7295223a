"""What the browser makes of a cell for the laboratory, once more in Python: its likeliest codes as bars, the rest as one more."""

from dataclasses import dataclass

from coolsd.laboratory.exact import VOCABULARY, LaboratoryError
from coolsd.trace import Run


@dataclass(frozen=True)
class RealRow:
    """p and q of one cell, VOCABULARY entries each, and what was done there."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    names: tuple[str, ...]  # of the entries: codes, then "rest"
    omega: float  # ω of its draft position; 1 where there is none
    source: str  # where the row comes from, in words


def real_row(run: Run, cell: int) -> RealRow:
    """The rows that met in a cell, from the heads that the run kept (`inspect`).

    Probabilities are the model's own; those of all codes but the likeliest are added up to one entry, so that a rule that looks at the
    codes one by one treats these as one code.

    Raises:
        LaboratoryError: the run kept no heads, has not come that far, or nothing was drafted for the cell.
    """
    event = next((r for r in run.rounds if r.start <= cell < r.start + len(r.tokens)), None)
    if event is None:
        raise LaboratoryError(f"The run has no token in cell {cell}. Give a number from 0 to {len(run.tokens) - 1}.")
    position = cell - event.start
    if event.top is None or position >= len(event.top):
        raise LaboratoryError("The run kept no rows. Decode it with `inspect`, for example inspect=8.")
    heads = {name: {int(code): mass for code, mass in head} for name, head in event.top[position].items()}
    if "q" not in heads:
        raise LaboratoryError(f"Nothing was drafted for cell {cell}: its token was drawn from p alone.")
    rows = [heads["p"], heads["q"]]
    codes = sorted(set(rows[0]) | set(rows[1]), key=lambda code: (-max(row.get(code, 0.0) for row in rows), code))[: VOCABULARY - 1]
    p, q = (_with_rest([row.get(code, 0.0) for code in codes]) for row in rows)
    omega = run.omega[position] if position < len(run.omega) else 1.0
    names = (*map(str, codes), *[""] * (VOCABULARY - 1 - len(codes)), "rest")
    return RealRow(p, q, names, omega, f"cell {cell}, round {event.index}, draft position {position + 1}: “{run.settings.prompt}”")


def _with_rest(masses: list[float]) -> tuple[float, ...]:
    """Masses of codes, zeros where there are few, and what they leave of 1; normalised."""
    masses = [*masses, *[0.0] * (VOCABULARY - 1 - len(masses))]
    masses.append(max(0.0, 1.0 - sum(masses)))
    return tuple(mass / sum(masses) for mass in masses)
