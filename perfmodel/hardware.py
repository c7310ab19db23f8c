"""Facts of accelerators from vendors' data sheets, found by any spelling of their name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Names of number formats, here and in the parameters of workloads."""

_GIB = 2**30
_MIB = 2**20

# Words that a spelling may have or lack without meaning another model.
_NOISE = frozenset(
    (
        *("nvidia", "amd", "intel", "habana", "corporation", "inc"),
        *("tesla", "geforce", "instinct", "radeon", "data", "center", "tensor", "core"),
        *("gpu", "graphics", "accelerator", "generation", "edition", "oam"),
    )
)
_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
# In order: one written form for what vendors, drivers and people write in several ways.
_SPELLINGS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"pci[\s_-]?e(?:xpress)?\b", " pcie "),
        (r"sxm[1245]?(?![0-9a-z])", " sxm "),
        (r"(?<![0-9a-z])(\d+)\s?gi?b?(?![0-9a-z])", r" \1g "),
        (r"(?<![0-9a-z])(rtx|gtx|rx|arc|gaudi|titan)[\s_-]?(?=[a-z]?\d)", r" \1 "),
        (r"(?<![0-9a-z])mi[\s_-](?=\d)", " mi"),
        (r"(?<=\d)ti(?![0-9a-z])", " ti "),
        (r"max[\s_-]?q(?![0-9a-z])", " maxq "),
    )
)


@dataclass(frozen=True)
class HardwareFacts:
    """What a vendor states about one model; None where no document says.

    `flops_per_second` holds the dense peak of a matrix product for each dtype, `units` the number
    of streaming multiprocessors, compute units or their like.
    """

    model: str
    vendor: str
    generation: str
    architecture: str
    kind: Literal["gpu"]
    memory_bytes: int
    memory_bytes_per_second: float
    flops_per_second: Mapping[str, float]
    source: str
    aliases: tuple[str, ...] = ()
    units: int | None = None
    l2_bytes: int | None = None
    tdp_watts: float | None = None


def find(name: str) -> HardwareFacts | None:
    """Facts of the model that `name` spells in any way, or None: a near miss is another model."""
    return _index().get(_key(name))


def canonical_model(name: str) -> str:
    """The model's canonical name, or `name` without trademark signs and doubled spaces."""
    facts = find(name)
    return facts.model if facts else clean(name)


def clean(name: str) -> str:
    """`name` in one line, without trademark signs, control characters and doubled spaces."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    return " ".join(_TRADEMARKS.sub(" ", printable).split())


@cache
def models() -> tuple[HardwareFacts, ...]:
    """Every model of hardware.toml, in its order."""
    text = resources.files("perfmodel").joinpath("hardware.toml").read_text(encoding="utf-8")
    return tuple(_facts(entry) for entry in tomllib.loads(text)["gpu"])


def spellings() -> Iterator[tuple[str, HardwareFacts]]:
    """Each canonical name and alias with its model."""
    for facts in models():
        for name in (facts.model, *facts.aliases):
            yield name, facts


@cache
def _index() -> Mapping[frozenset[str], HardwareFacts]:
    return {_key(name): facts for name, facts in spellings()}


def _key(name: str) -> frozenset[str]:
    """What two spellings of one model have in common: their words, less noise, in any order."""
    text = clean(name).lower()
    for pattern, form in _SPELLINGS:
        text = pattern.sub(form, text)
    return frozenset(re.findall(r"[a-z0-9.]+", text)) - _NOISE


def _facts(entry: Mapping[str, Any]) -> HardwareFacts:
    chip, board = entry["chip"], entry["board"]
    return HardwareFacts(
        model=entry["model"],
        vendor=chip["vendor"],
        generation=chip["generation"],
        architecture=chip["architecture"],
        kind="gpu",
        memory_bytes=int(board["memory_gib"] * _GIB),
        memory_bytes_per_second=float(board["memory_bytes_per_second"]),
        flops_per_second={dtype: float(v) for dtype, v in entry["flops_per_second"].items()},
        source=entry["source"],
        aliases=tuple(entry["aliases"]),
        units=chip.get("units"),
        l2_bytes=int(chip["l2_mib"] * _MIB) if "l2_mib" in chip else None,
        tdp_watts=board.get("tdp_watts"),
    )
