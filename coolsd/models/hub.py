"""Weights on the model hub: what a pair is made of, what of it is on this computer, and how to fetch the rest."""

import logging
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from .checkpoints import LoadError, shards_of

log = logging.getLogger("coolsd")


@dataclass(frozen=True)
class HubFiles:
    """Files of one repository that belong together.

    Args:
        what: the argument of `load` that names local files instead. files: names or patterns. gigabytes: to download, about.
        licence: a line to show where it is not a free one. optional: the pair works without.
    """

    what: str
    repo: str
    files: tuple[str, ...]
    gigabytes: float
    licence: str = ""
    optional: bool = False

    @property
    def command(self) -> str:
        """The shell command that fetches the part."""
        exact = not any("*" in name for name in self.files)
        names = " ".join(self.files) if exact else " ".join(f"--include '{name}'" for name in self.files)
        return f"hf download {self.repo} {names}"

    def complete(self, folder: Path) -> bool:
        """Whether the folder holds something for every name, and all shards that an index lists: a download may have been broken off."""
        if not all(any(folder.glob(name)) for name in self.files):
            return False
        indices = [path for name in self.files for path in folder.glob(name) if path.name.endswith(".safetensors.index.json")]
        return all((folder / shard).exists() for path in indices for shard in shards_of(path))


def local(part: HubFiles) -> Path | None:
    """The folder of a part that was downloaded before, or None."""
    try:
        folder = Path(snapshot_download(part.repo, allow_patterns=list(part.files), local_files_only=True))
    except (OSError, ValueError):  # the hub's "not in the cache" is both
        return None
    return folder if part.complete(folder) else None


def fetch(part: HubFiles, path: str | Path | None = None) -> Path:
    """The file or folder named by `path`, or the folder of the part, downloaded if need be (resumable).

    Raises:
        LoadError: the path does not exist, or the part is neither here nor to be had; the message gives size and command.
    """
    if path is not None:
        path = Path(path).expanduser()
        if not path.exists():
            raise LoadError(f"{part.what}: {path} does not exist.")
        return path
    if folder := local(part):
        return folder
    try:
        files = HfApi().model_info(part.repo, files_metadata=True).siblings or []
        sizes = {f.rfilename: f.size or 0 for f in files if any(fnmatch(f.rfilename, name) for name in part.files)}
        size = sum(sizes.values()) / 1e9
        log.info("%s: downloading %.2f GB from %s (%s); goes on where it was broken off", part.what, size, part.repo, ", ".join(sizes))
        folder = Path(snapshot_download(part.repo, allow_patterns=list(part.files)))
    except Exception as error:  # network, disk, hub and proxy errors have no common ancestor
        raise LoadError(f"{missing_line(part)} It could not be downloaded: {_first_line(error)}") from error
    if not part.complete(folder):
        raise LoadError(f"{part.what}: {part.repo} does not hold {', '.join(part.files)}; name local files: `--files {part.what}=PATH`.")
    return folder


def missing_line(part: HubFiles) -> str:
    """What to do about a part that is not here."""
    none = f" (`--files {part.what}=none` goes without)" if part.optional else ""
    return (
        f"{part.what}: {', '.join(part.files)} of {part.repo} ({part.gigabytes:g} GB) is not on this computer. "
        f"Fetch it with `{part.command}`, or name local files: `--files {part.what}=PATH` on the command line{none}."
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}"
