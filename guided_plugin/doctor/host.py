"""The vLLM that is installed: its version, and whether it has what is relied on. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.hosts.vllm.contract import CONTRACT, differences
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.shapes import Sources, installed_folder
from guided_plugin.hosts.vllm.versions import is_tested, version_text


def vllm(setup: Setup) -> Iterator[Finding]:
    """Each part of the contract that is broken."""
    folder = installed_folder()
    if folder is None:
        yield Finding("unknown", "vLLM is not installed here")
        return
    version = version_text()
    if is_tested(version):
        yield Finding("ok", f"vLLM {version}, a tested version")
    else:
        yield Finding("note", f"vLLM {version} is not among the tested versions", "docs/vllm-versions.md")
    reader = Sources(folder)
    broken = {part: found for part in Part if (found := differences(reader, part))}
    for part, found in broken.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Finding(
            "problem",
            f"vLLM does not serve {part.value}: {found[0]}{more}",
            "install a tested version; guided-plugin vllm-contract lists all",
        )
    if not broken:
        yield Finding("ok", f"all {len(CONTRACT)} names that are relied on are there")
