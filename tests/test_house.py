"""The layout of the package: imports run one way, and each part knows only what it may."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "coolsd"
GROUND = ("sampling", "schedules", "rules", "trees", "verification", "tree_verification", "traversal", "theory")
# every part, from the ground up: it imports from those before it alone
ORDER = (
    *("checks", "sampling", "schedules", "trees", "rules", "theory", "verification", "tree_verification", "traversal"),
    *("settings", "protocols", "scene", "trace", "race", "jacobi", "methods", "decoding", "laboratory", "bundle", "exports"),
    *("models", "data", "__init__", "options", "training", "evaluation", "show", "ui", "__main__"),
)
# part: what it must not import, directly or in a function
CLOSED = {
    **dict.fromkeys(GROUND, ("settings", "trace", "methods", "decoding", "laboratory", "models", "data", "training", "evaluation", "ui")),
    "settings": ("trace", "methods", "decoding", "models", "data", "training", "evaluation", "ui"),
    "protocols": ("settings", "trace", "methods", "decoding", "models", "data", "training", "evaluation", "ui"),
    "trace": ("methods", "decoding", "protocols", "models", "data", "training", "evaluation", "ui"),
    "methods": ("trace", "decoding", "models", "data", "training", "evaluation", "ui"),
    "decoding": ("laboratory", "models", "data", "training", "evaluation", "ui"),
    "laboratory": ("decoding", "models", "data", "training", "evaluation", "ui"),
    "models": ("methods", "decoding", "trace", "laboratory", "data", "training", "evaluation", "ui"),
    "data": ("methods", "decoding", "training", "evaluation", "ui"),
    "training": ("evaluation", "ui"),
    "evaluation": ("training", "ui"),
}


def modules() -> dict[str, str]:
    """Source of every module by dotted name."""
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}


def imports(name: str, source: str) -> set[str]:
    """Dotted names that a module imports, also in functions; those for type checking alone are left out."""
    package = name.split(".")
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    out = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            out |= {f"{base}.{alias.name}" for alias in node.names}
    return out


def module_of(name: str, names: set[str]) -> str | None:
    """The module of the package that an imported name lies in."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for candidate in (".".join(parts[:end]), ".".join([*parts[:end], "__init__"])):
            if candidate in names:
                return candidate
    return None


def part(name: str) -> str:
    """The part of the house that a module belongs to."""
    return name.split(".")[1]


def violations(sources: dict[str, str]) -> list[str]:
    """Imports that the parts must not make."""
    out = []
    for name, source in sources.items():
        targets = {module_of(target, set(sources)) for target in imports(name, source)} - {None}
        out += [f"{name} imports {target}" for target in targets if part(target) in CLOSED.get(part(name), ())]
    return out


def climbing(sources: dict[str, str]) -> set[str]:
    """Imports from a part that stands higher."""
    place = {name: i for i, name in enumerate(ORDER)}
    out = set()
    for name, source in sources.items():
        targets = {module_of(target, set(sources)) for target in imports(name, source)} - {None}
        out |= {f"{name} imports {target}" for target in targets if place[part(target)] > place[part(name)]}
    return out


def test_no_part_imports_from_above():
    sources = modules()
    assert {part(name) for name in sources} == set(ORDER)
    assert climbing(sources) == set()
    sources["coolsd.show.drawings"] += "\ndef late():\n    from ..ui import text\n"
    sources["coolsd.trace"] += "\nfrom .models import pair\n"
    assert climbing(sources) == {"coolsd.trace imports coolsd.models.pair", "coolsd.show.drawings imports coolsd.ui.text"}


def test_no_part_imports_what_it_must_not_know():
    assert violations(modules()) == []


def test_a_forbidden_import_is_seen():
    sources = modules()
    sources["coolsd.training.loop"] += "\ndef late():\n    from ..evaluation.samples import Job\n"
    assert violations(sources) == ["coolsd.training.loop imports coolsd.evaluation.samples"]


def test_no_modules_import_each_other():
    sources = modules()
    graph = {name: {module_of(target, set(sources)) for target in imports(name, source)} - {None, name} for name, source in sources.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_mathematics_needs_torch_alone_and_only_the_page_needs_gradio():
    for name, source in modules().items():
        foreign = {target.split(".")[0] for target in imports(name, source)} - {"coolsd", *sys.stdlib_module_names}
        if part(name) in GROUND:
            assert foreign <= {"torch"}, name
        assert part(name) == "ui" or "gradio" not in foreign, name


def test_no_json_that_is_written_can_hold_what_is_none():
    """NaN and infinities are no JSON: they end the run that would write them. The gate passes on what was sent to it, and parsed."""
    for name, source in modules().items():
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dumps"]
        for call in calls if name != "coolsd.ui.gate" else ():
            assert any(word.arg == "allow_nan" for word in call.keywords), f"{name}, line {call.lineno}: json.dumps(…, allow_nan=False)"


def test_what_tests_share_lies_in_helpers():
    for path in Path(__file__).parent.rglob("test_*.py"):
        names = [a.name for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Import) for a in n.names]
        names += [n.module or "" for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)]
        assert not [name for name in names if name.startswith("test_")], f"{path.name} imports another file of tests"
