"""MaskBench: does a backend accept what schemas allow, and how long do its masks take.

Files are measured in child processes (`maskbench_child.py`): a schema that makes a backend hang or crash
costs its own row, and a new child goes on.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import platform
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from guided_plugin.bench.environment import environment
from guided_plugin.bench.maskbench_child import Settings
from guided_plugin.bench.maskbench_pool import Pool
from guided_plugin.bench.maskbench_result import FileResult, summarise
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary


@contextlib.contextmanager
def open_sample(source: Path) -> Iterator[dict[str, Path]]:
    """The .json files of a folder or a tar archive, by name; an archive is unpacked while this is open.

    Names are relative to the innermost folder that holds them all, the same for a folder and its archive.
    """
    with contextlib.ExitStack() as stack:
        if source.is_dir():
            found = {path.relative_to(source).as_posix(): path for path in source.rglob("*.json")}
        else:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="maskbench-"))
            found = _unpack(source, Path(scratch))
        if not found:
            raise GuidedError(
                "contains no .json file", where=str(source), hint="docs/maskbench.md describes samples"
            )
        common = os.path.commonpath([PurePosixPath(name).parent for name in found])
        yield {PurePosixPath(name).relative_to(common).as_posix(): found[name] for name in sorted(found)}


def _unpack(archive: Path, folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                content = members.extractfile(member) if member.isfile() else None
                if content is None or not member.name.endswith(".json"):
                    continue
                # Our own file names: those of an archive may lead anywhere.
                name = PurePosixPath(member.name.lstrip("/")).as_posix()
                path = found.setdefault(name, folder / f"{len(found)}.json")
                path.write_bytes(content.read())
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise GuidedError(f"is neither a folder nor a tar archive: {error}", where=str(archive)) from None
    except OSError as error:
        raise GuidedError(f"can't be read: {error.strerror or error}", where=str(archive)) from None
    return found


def run_maskbench(
    files: dict[str, Path],
    tokenizer: Any,
    backends: Sequence[str],
    *,
    jobs: int = 1,
    limit: float = 60.0,
    progress: Callable[[str, FileResult], None] = lambda _, __: None,
) -> dict[str, Any]:
    """Measure all files with each backend, for a transformers tokenizer; the result is JSON.

    `progress` is called after each file, with the backend's name as given. After a KeyboardInterrupt, or
    when children no longer start, the result holds what was done, and `interrupted` says why.
    """
    vocabulary = replace(Vocabulary.from_tokenizer(tokenizer), encode=None)
    encoder = getattr(tokenizer, "backend_tokenizer", None)
    result: dict[str, Any] = {
        "benchmark": "maskbench",
        "environment": environment(),
        "machine": _machine(),
        "vocabulary": vocabulary.size,
        "tokens": "longest that fit" if encoder is None else "the tokenizer's",
        "files": len(files),
        "jobs": jobs,
        "limit_seconds": limit,
        "interrupted": "",
        "runs": [],
    }
    for backend in backends:
        pool = Pool(Settings(vocabulary, encoder, backend, limit), jobs)
        done: list[FileResult] = []
        try:
            with contextlib.closing(pool.run(files)) as rows:
                for row in rows:
                    done.append(row)
                    progress(backend, row)
        except KeyboardInterrupt:
            result["interrupted"] = "by the user"
        except GuidedError as error:
            if not done:
                raise
            result["interrupted"] = str(error)
        done.sort(key=lambda row: row.name)
        result["runs"].append(
            {
                "backend": backend,
                "empty_call_us": None if pool.ready is None else pool.ready.empty_call_us,
                "summary": summarise(done),
                "files": [row.to_dict() for row in done],
            }
        )
        if result["interrupted"]:
            break
    return result


def _machine() -> dict[str, Any]:
    """The processor, on which times of single masks depend."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"system": platform.system(), "architecture": platform.machine(), "processor": model}
