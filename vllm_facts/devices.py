"""Data sheets of devices."""

from collections.abc import Mapping

from app.extensions.costs.cards import CARDS
from vllm_facts.device import GIB, TERA, Device

_DATA_CENTER: Mapping[str, Device] = {
    "h100": Device(
        name="H100 SXM 80 GB",
        bandwidth=3.35 * TERA,
        flops=989.4 * TERA,
        flops_8bit=1978.9 * TERA,
        flops_32bit=67 * TERA,
        memory=79.2 * GIB,
        link=0.45 * TERA,
        sheet="NVIDIA H100 Tensor Core GPU, data sheet: 3.35 TB/s, BF16 1,979 and FP8 3,958 TFLOPS"
        " with sparsity, NVLink 900 GB/s",
    ),
    "h200": Device(
        name="H200 SXM 141 GB",
        bandwidth=4.8 * TERA,
        flops=989.4 * TERA,
        flops_8bit=1978.9 * TERA,
        flops_32bit=67 * TERA,
        memory=139.8 * GIB,
        link=0.45 * TERA,
        sheet="NVIDIA H200 Tensor Core GPU, data sheet: 4.8 TB/s, 141 GB, arithmetic and NVLink as"
        " H100 SXM",
    ),
    "a100": Device(
        name="A100 SXM 80 GB",
        bandwidth=2.039 * TERA,
        flops=312 * TERA,
        flops_8bit=None,
        flops_32bit=19.5 * TERA,
        memory=79.2 * GIB,
        link=0.3 * TERA,
        sheet="NVIDIA A100 Tensor Core GPU, data sheet: 2,039 GB/s, BF16 312 TFLOPS, NVLink"
        " 600 GB/s",
    ),
    "l40s": Device(
        name="L40S 48 GB",
        bandwidth=0.864 * TERA,
        flops=362 * TERA,
        flops_8bit=733 * TERA,
        flops_32bit=91.6 * TERA,
        memory=44.4 * GIB,
        link=0.032 * TERA,
        sheet="NVIDIA L40S, data sheet: 864 GB/s, BF16 362 and FP8 733 TFLOPS, PCIe Gen4 x16"
        " 64 GB/s",
    ),
    "mi300x": Device(
        name="MI300X 192 GB",
        bandwidth=5.3 * TERA,
        flops=1307.4 * TERA,
        flops_8bit=2614.9 * TERA,
        flops_32bit=163.4 * TERA,
        memory=191.9 * GIB,
        link=0.448 * TERA,
        sheet="AMD Instinct MI300X, data sheet: 5.3 TB/s, BF16 1,307.4 and FP8 2,614.9 TFLOPS,"
        " Infinity Fabric 896 GB/s",
    ),
    "b200": Device(
        name="B200 SXM 180 GB",
        bandwidth=8 * TERA,
        flops=2250 * TERA,
        flops_8bit=4500 * TERA,
        flops_32bit=75 * TERA,
        memory=178.4 * GIB,
        link=0.9 * TERA,
        sheet="NVIDIA DGX B200, data sheet (eight of them): 64 TB/s, FP8 72 PFLOPS with sparsity"
        " and BF16 half of it, 1,440 GB, NVLink 14.4 TB/s",
    ),
    "b300": Device(
        name="B300 SXM 288 GB",
        bandwidth=7.75 * TERA,
        flops=2250 * TERA,
        flops_8bit=4500 * TERA,
        flops_32bit=75 * TERA,
        memory=268.5 * GIB,
        link=0.9 * TERA,
        sheet="NVIDIA DGX B300, data sheet (eight of them): 62 TB/s, FP8 72 PFLOPS with sparsity"
        " and BF16 half of it, 2.1 TB, NVLink 14.4 TB/s",
    ),
    "gb200": Device(
        name="GB200 186 GB",
        bandwidth=8 * TERA,
        flops=2500 * TERA,
        flops_8bit=5000 * TERA,
        flops_32bit=80 * TERA,
        memory=185 * GIB,
        link=0.9 * TERA,
        sheet="NVIDIA GB200 NVL72, data sheet (72 of them): 576 TB/s, FP8 720 PFLOPS with sparsity"
        " and BF16 half of it, 13.4 TB, NVLink 130 TB/s",
    ),
    "gb300": Device(
        name="GB300 288 GB",
        bandwidth=8 * TERA,
        flops=2500 * TERA,
        flops_8bit=5000 * TERA,
        flops_32bit=80 * TERA,
        memory=277.5 * GIB,
        link=0.9 * TERA,
        sheet="NVIDIA GB300 NVL72, data sheet (72 of them): 576 TB/s, FP8 720 PFLOPS with sparsity"
        " and BF16 half of it, 20 TB, NVLink 130 TB/s",
    ),
    "rtx-pro-6000": Device(
        name="RTX PRO 6000 Blackwell Server 96 GB",
        bandwidth=1.597 * TERA,
        flops=500 * TERA,
        flops_8bit=1000 * TERA,
        flops_32bit=120 * TERA,
        memory=95.5 * GIB,
        link=0.064 * TERA,
        sheet="NVIDIA RTX PRO 6000 Blackwell Server Edition, data sheet: 1,597 GB/s, FP4 4"
        " PFLOPS with sparsity, FP8 half and BF16 a quarter of it, PCIe Gen5 x16 128 GB/s",
    ),
    "l4": Device(
        name="L4 24 GB",
        bandwidth=0.3 * TERA,
        flops=121 * TERA,
        flops_8bit=242.5 * TERA,
        flops_32bit=30.3 * TERA,
        memory=22.4 * GIB,
        link=0.032 * TERA,
        sheet="NVIDIA L4, data sheet: 300 GB/s, BF16 242 and FP8 485 TFLOPS with sparsity, PCIe"
        " Gen4 x16 64 GB/s",
    ),
    "mi355x": Device(
        name="MI355X 288 GB",
        bandwidth=8 * TERA,
        flops=2516.6 * TERA,
        flops_8bit=5033.2 * TERA,
        flops_32bit=157.3 * TERA,
        memory=287.9 * GIB,
        link=0.538 * TERA,
        sheet="AMD Instinct MI355X, data sheet: 8 TB/s, BF16 2,516.6 and FP8 5,033.2 TFLOPS,"
        " Infinity Fabric 1,075 GB/s",
    ),
}
DEVICES: Mapping[str, Device] = {**_DATA_CENTER, **CARDS}
"""Name -> its data sheet."""
