"""hardware.toml agrees with itself, and a name's spelling finds its model and no other."""

from collections import Counter

import pytest

from perfmodel import hardware
from perfmodel.hardware import DTYPES, canonical_model, clean, find, models, spellings

SPELLINGS = {
    "H100 SXM 80GB": (
        "NVIDIA H100 80GB HBM3", "H100_SXM", "h100-80g", "H100", "h100", "nvidia h100",
        "H100-SXM5-80GB", "H100 SXM5", "h100 sxm 80 GB", "H100-SXM-80GB", "H100 (SXM)",
        "h100_sxm5_80gb", "NVIDIA-H100-80GB-HBM3", "NVIDIA H100 SXM5 80GB HBM3", "HGX H100",
        "80GB H100", "H100 80GiB", "NVIDIA(R) H100(TM) 80GB HBM3", "  NVIDIA   H100 80GB HBM3\n",
        "NVIDIA H100 Tensor Core GPU", "Nvidia H100-80",
    ),
    "H100 PCIe 80GB": (
        "NVIDIA H100 PCIe", "H100_PCIE", "h100-pcie-80gb", "H100 PCI-E", "H100 PCI Express 80GB",
    ),
    "H100 NVL 94GB": ("NVIDIA H100 NVL", "h100_nvl", "H100-NVL-94G"),
    "H200 SXM 141GB": ("NVIDIA H200", "h200-141gb"),
    "A100 SXM 40GB": ("NVIDIA A100-SXM4-40GB", "A100-40", "a100_40gb", "A100-SXM-40G", "A100"),
    "A100 SXM 80GB": ("NVIDIA A100-SXM4-80GB", "A100-80", "a100 80g"),
    "A100 PCIe 40GB": ("NVIDIA A100-PCIE-40GB",),
    "A100 PCIe 80GB": ("NVIDIA A100 80GB PCIe",),
    "V100 SXM2 16GB": ("Tesla V100-SXM2-16GB", "v100"),
    "V100 SXM2 32GB": ("Tesla V100-SXM2-32GB", "V100-32G"),
    "V100 PCIe 32GB": ("Tesla V100-PCIE-32GB",),
    "V100S PCIe 32GB": ("Tesla V100S-PCIE-32GB",),
    "P100 PCIe 16GB": ("Tesla P100-PCIE-16GB",),
    "T4": ("Tesla T4", "NVIDIA T4"),
    "A10": ("NVIDIA A10",),
    "A10G": ("NVIDIA A10G",),
    "L40S": ("NVIDIA L40S",),
    "RTX 2080 Ti": ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti", "RTX-2080-Ti"),
    "RTX 3090": ("NVIDIA GeForce RTX 3090", "rtx3090"),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", "RTX4090", "geforce_rtx_4090"),
    "RTX A6000": ("NVIDIA RTX A6000", "A6000"),
    "RTX 6000 Ada": ("NVIDIA RTX 6000 Ada Generation",),
    "Quadro RTX 6000": ("Quadro RTX 6000",),
    "RTX PRO 6000 Blackwell Workstation": (
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    ),
    "RTX PRO 6000 Blackwell Server": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    "RTX PRO 6000 Blackwell Max-Q": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    "GH200 96GB": ("NVIDIA GH200 480GB",),
    "GH200 144GB": ("NVIDIA GH200 144G HBM3e",),
    "B300": ("NVIDIA B300 SXM6 AC",),
    "MI300X": ("AMD Instinct MI300X", "AMD Instinct MI300X OAM", "mi-300x", "MI 300X"),
    "RX 7900 XTX": ("AMD Radeon RX 7900 XTX", "rx7900 xtx"),
    "PRO W7800": ("AMD Radeon PRO W7800",),
    "Max 1550": ("Intel(R) Data Center GPU Max 1550",),
    "Arc A770 16GB": ("Intel(R) Arc(TM) A770 Graphics",),
    "Gaudi 2": ("gaudi2", "HL-225", "Intel Gaudi 2"),
}  # fmt: skip

# Near misses: other models, or too little said to know which.
UNKNOWN = (
    "H100 NVL PCIe", "H100 80GB HBM2e", "A100-60", "A100X", "V100-SXM3-32GB", "RTX 6000",
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "RTX 3080 12GB",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "L400", "MI300", "NVIDIA", "GPU", "",
    "NVIDIA GeForce RTX 4080 SUPER", "AMD EPYC 9654 96-Core Processor",
)  # fmt: skip


class TestSpellings:
    @pytest.mark.parametrize(
        ("spelling", "model"), [(s, model) for model, all_ in SPELLINGS.items() for s in all_]
    )
    def test_a_spelling_finds_its_model(self, spelling: str, model: str) -> None:
        facts = find(spelling)
        assert facts is not None
        assert facts.model == canonical_model(spelling) == model

    def test_there_are_twenty_for_one_device(self) -> None:
        assert len(set(SPELLINGS["H100 SXM 80GB"])) >= 20

    @pytest.mark.parametrize("name", UNKNOWN)
    def test_a_near_miss_is_no_model(self, name: str) -> None:
        assert find(name) is None
        assert canonical_model(name) == name

    def test_an_unknown_name_is_cleaned(self) -> None:
        assert canonical_model(" NVIDIA(R)  H900\t(TM)\x00 ") == "NVIDIA H900"
        assert clean("Intel® Xeon®") == "Intel Xeon"

    def test_canonical_names_stay(self) -> None:
        for facts in models():
            assert canonical_model(facts.model) == facts.model

    def test_no_spelling_is_listed_twice(self) -> None:
        counted = Counter(hardware._key(name) for name, _ in spellings())
        assert [key for key, count in counted.items() if count > 1] == []
        assert frozenset() not in counted


class TestFacts:
    def test_breadth(self) -> None:
        names = {facts.model for facts in models()}
        assert len(names) == len(models()) >= 30
        assert {"P100 SXM2 16GB", "B300", "MI300X", "MI355X", "RX 7900 XTX", "Max 1550"} <= names
        assert {facts.vendor for facts in models()} == {"NVIDIA", "AMD", "Intel"}

    @pytest.mark.parametrize("facts", models(), ids=lambda facts: facts.model)
    def test_one_model_is_plausible(self, facts: hardware.HardwareFacts) -> None:
        peaks = facts.flops_per_second
        assert peaks
        assert set(peaks) <= set(DTYPES)
        assert all(1e12 <= peak <= 2e16 for peak in peaks.values())
        assert facts.vendor in facts.source
        assert facts.architecture
        assert facts.generation
        assert 100e9 <= facts.memory_bytes_per_second <= 10e12
        assert 8 * 2**30 <= facts.memory_bytes <= 300 * 2**30
        assert facts.units is None or 8 <= facts.units <= 400
        assert facts.l2_bytes is None or 2**20 <= facts.l2_bytes <= 2**29
        assert facts.tdp_watts is None or 50 <= facts.tdp_watts <= 1500

    @pytest.mark.parametrize("facts", models(), ids=lambda facts: facts.model)
    def test_narrower_formats_are_not_slower(self, facts: hardware.HardwareFacts) -> None:
        peaks = facts.flops_per_second
        # No chain through int8 or fp64: B300 gave most of both away.
        for wide, narrow in (
            ("fp64", "fp32"), ("fp32", "tf32"), ("tf32", "fp16"), ("fp32", "fp16"),
            ("fp32", "bf16"), ("fp16", "fp8"), ("bf16", "fp8"),
        ):  # fmt: skip
            if wide in peaks and narrow in peaks:
                assert peaks[narrow] >= peaks[wide], (wide, narrow)

    @pytest.mark.parametrize("facts", models(), ids=lambda facts: facts.model)
    def test_dense_not_sparse(self, facts: hardware.HardwareFacts) -> None:
        """A figure with sparsity would double the 16-bit rate beside tf32 or fp8."""
        peaks = facts.flops_per_second
        if "tf32" in peaks and "fp16" in peaks:
            assert 1.9 <= peaks["fp16"] / peaks["tf32"] <= 2.1
        if "fp8" in peaks and "fp16" in peaks:
            assert 1.9 <= peaks["fp8"] / peaks["fp16"] <= 2.1

    @pytest.mark.parametrize("facts", models(), ids=lambda facts: facts.model)
    def test_roofline_ridge(self, facts: hardware.HardwareFacts) -> None:
        """FLOPs per byte at which a device turns from memory-bound to compute-bound."""
        ridge = max(facts.flops_per_second.values()) / facts.memory_bytes_per_second
        assert 10 <= ridge <= 1000

    def test_variants_of_a_chip_differ_where_they_should(self) -> None:
        pcie, sxm, nvl = (find(f"H100 {board}") for board in ("PCIe", "SXM", "NVL"))
        assert pcie is not None
        assert sxm is not None
        assert nvl is not None
        order = [f.flops_per_second["bf16"] for f in (pcie, nvl, sxm)]
        assert order == sorted(order)
        assert pcie.memory_bytes_per_second < sxm.memory_bytes_per_second
        small, large = find("A100-40"), find("A100-80")
        assert small is not None
        assert large is not None
        assert (small.memory_bytes, large.memory_bytes) == (40 * 2**30, 80 * 2**30)
        assert small.flops_per_second == large.flops_per_second
