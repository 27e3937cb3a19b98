"""Data sheets of workstation cards, older devices, and accelerators of other makers.

`vllm_facts.devices` has them in its table.
"""

from collections.abc import Mapping

from vllm_facts.accelerator import GIB, PCIE_4, PCIE_5, TERA, Device

CARDS: Mapping[str, Device] = {
    "rtx3090": Device(
        name="RTX 3090 24 GB",
        capability=8.6,
        bandwidth=0.936 * TERA,
        flops=71 * TERA,
        flops_8bit=None,
        flops_32bit=35.6 * TERA,
        memory=23.57 * GIB,
        link=PCIE_4,
        sheet="NVIDIA Ampere GA102 whitepaper: RTX 3090 936 GB/s, FP16 with FP32 accumulation 71"
        " TFLOPS, PCIe Gen4 x16",
    ),
    "rtx4090": Device(
        name="RTX 4090 24 GB",
        capability=8.9,
        bandwidth=1.008 * TERA,
        flops=165.2 * TERA,
        flops_8bit=330.3 * TERA,
        flops_32bit=82.6 * TERA,
        memory=23.52 * GIB,
        link=PCIE_4,
        sheet="NVIDIA Ada GPU architecture whitepaper: RTX 4090 1,008 GB/s, FP16 165.2 and FP8"
        " 330.3 TFLOPS with FP32 accumulation, PCIe Gen4 x16",
    ),
    "rtx5090": Device(
        name="RTX 5090 32 GB",
        capability=12.0,
        bandwidth=1.792 * TERA,
        flops=209.5 * TERA,
        flops_8bit=419 * TERA,
        flops_32bit=104.8 * TERA,
        memory=31.36 * GIB,
        link=PCIE_5,
        sheet="NVIDIA RTX Blackwell GPU architecture whitepaper: RTX 5090 1,792 GB/s, FP16 209.5"
        " and FP8 419 TFLOPS with FP32 accumulation, PCIe Gen5 x16",
    ),
    "rtx6000-ada": Device(
        name="RTX 6000 Ada 48 GB",
        capability=8.9,
        bandwidth=0.96 * TERA,
        flops=364.2 * TERA,
        flops_8bit=728.5 * TERA,
        flops_32bit=91.1 * TERA,
        memory=47.4 * GIB,
        link=PCIE_4,
        sheet="NVIDIA RTX 6000 Ada, data sheet: 960 GB/s, FP8 1,457 TFLOPS with sparsity and BF16"
        " half of it, PCIe Gen4 x16",
    ),
    "a10g": Device(
        name="A10G 24 GB",
        capability=8.6,
        bandwidth=0.6 * TERA,
        flops=70 * TERA,
        flops_8bit=None,
        flops_32bit=35 * TERA,
        memory=22.06 * GIB,
        link=PCIE_4,
        sheet="NVIDIA A10G, data sheet: 600 GB/s, BF16 70 TFLOPS, PCIe Gen4 x16",
    ),
    "a40": Device(
        name="A40 48 GB",
        capability=8.6,
        bandwidth=0.696 * TERA,
        flops=149.7 * TERA,
        flops_8bit=None,
        flops_32bit=37.4 * TERA,
        memory=44.34 * GIB,
        link=PCIE_4,
        sheet="NVIDIA A40, data sheet: 696 GB/s, BF16 149.7 TFLOPS, PCIe Gen4 x16",
    ),
    "a6000": Device(
        name="RTX A6000 48 GB",
        capability=8.6,
        bandwidth=0.768 * TERA,
        flops=154.8 * TERA,
        flops_8bit=None,
        flops_32bit=38.7 * TERA,
        memory=47.41 * GIB,
        link=PCIE_4,
        sheet="NVIDIA RTX A6000, data sheet: 768 GB/s, BF16 309.7 TFLOPS with sparsity, PCIe Gen4"
        " x16",
    ),
    "a100-40gb": Device(
        name="A100 SXM 40 GB",
        capability=8.0,
        bandwidth=1.555 * TERA,
        flops=312 * TERA,
        flops_8bit=None,
        flops_32bit=19.5 * TERA,
        memory=39.38 * GIB,
        link=0.3 * TERA,
        sheet="NVIDIA A100 40GB, data sheet: 1,555 GB/s, BF16 312 TFLOPS, NVLink 600 GB/s",
    ),
    "h20": Device(
        name="H20 SXM 96 GB",
        capability=9.0,
        bandwidth=4 * TERA,
        flops=148 * TERA,
        flops_8bit=296 * TERA,
        flops_32bit=44 * TERA,
        memory=95.1 * GIB,
        link=0.45 * TERA,
        sheet="NVIDIA H20, data sheet: 4 TB/s, BF16 148 and FP8 296 TFLOPS, NVLink 900 GB/s",
    ),
    "h20-141gb": Device(
        name="H20 SXM 141 GB",
        capability=9.0,
        bandwidth=4.8 * TERA,
        flops=148 * TERA,
        flops_8bit=296 * TERA,
        flops_32bit=44 * TERA,
        memory=139.8 * GIB,
        link=0.45 * TERA,
        sheet="NVIDIA H20 141GB, data sheet: 4.8 TB/s, BF16 148 and FP8 296 TFLOPS, NVLink 900"
        " GB/s",
    ),
    "gb10": Device(
        name="GB10 (DGX Spark) 128 GB",
        capability=12.1,
        bandwidth=0.273 * TERA,
        flops=125 * TERA,
        flops_8bit=250 * TERA,
        flops_32bit=31 * TERA,
        memory=119.6 * GIB,
        link=0.025 * TERA,
        sheet="NVIDIA DGX Spark, data sheet: 273 GB/s, FP4 1 PFLOPS with sparsity, FP8 half and"
        " BF16 a quarter of it, ConnectX-7 200 Gb/s",
        is_unified=True,
    ),
    "thor": Device(
        name="Jetson AGX Thor 128 GB",
        capability=11.0,
        bandwidth=0.273 * TERA,
        flops=258 * TERA,
        flops_8bit=517 * TERA,
        flops_32bit=8.1 * TERA,
        memory=122.8 * GIB,
        link=0.0125 * TERA,
        sheet="NVIDIA Jetson AGX Thor, data sheet: 273 GB/s, FP4 2,070 TFLOPS with sparsity, FP8"
        " half and BF16 a quarter of it, 100 Gb/s",
        is_unified=True,
    ),
    "mi210": Device(
        name="MI210 64 GB",
        bandwidth=1.638 * TERA,
        flops=181 * TERA,
        flops_8bit=None,
        flops_32bit=22.6 * TERA,
        memory=63.98 * GIB,
        link=0.05 * TERA,
        sheet="AMD Instinct MI210, data sheet: 1,638 GB/s, BF16 181 TFLOPS, Infinity Fabric 100"
        " GB/s a link",
    ),
    "gaudi2": Device(
        name="Gaudi 2 96 GB",
        bandwidth=2.45 * TERA,
        flops=432 * TERA,
        flops_8bit=865 * TERA,
        flops_32bit=11 * TERA,
        memory=94.6 * GIB,
        link=0.2625 * TERA,
        sheet="Intel Gaudi 2, whitepaper: 2.45 TB/s, BF16 432 and FP8 865 TFLOPS, 21 ports of 100"
        " Gb/s in a server",
    ),
    "gaudi3": Device(
        name="Gaudi 3 128 GB",
        bandwidth=3.7 * TERA,
        flops=1678 * TERA,
        flops_8bit=1678 * TERA,
        flops_32bit=14.3 * TERA,
        memory=126 * GIB,
        link=0.525 * TERA,
        sheet="Intel Gaudi 3, whitepaper: 3.7 TB/s, BF16 and FP8 1,678 TFLOPS, 21 ports of 200"
        " Gb/s in a server",
    ),
}
"""Name -> its data sheet."""
