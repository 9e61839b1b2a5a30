"""All packaging metadata; pyproject.toml holds the build system and the tools."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    """Return the version of the package, read as text: its dependencies are not there yet while it is built."""
    match = re.search(r'^__version__ = "(.+)"$', (HERE / "dpdoctor" / "version.py").read_text("utf-8"), re.MULTILINE)
    assert match, "dpdoctor/version.py holds no line __version__ = "
    return match[1]


TEST = [
    "pytest",
    "pytest-xdist",
    "pytest-rerunfailures",
    "hypothesis",
    "hydra-core",
    "pyyaml",
    "markdown-it-py",
    "playwright",
    "axe-playwright-python",
    "jsonschema",
]
DOCS = ["sphinx", "myst-parser", "furo"]
DEV = [*TEST, *DOCS, "pytest-cov", "ruff", "mypy", "pre-commit"]
BENCHMARK = ["HolisticTraceAnalysis"]  # what tests/benchmarks/trace_reading.py compares with
FRAMEWORKS = ["lightning", "transformers", "accelerate"]  # what samples/lightning_module.py and hf_trainer.py need

setup(
    name="dpdoctor",
    version=version(),
    description="Profile and diagnose the throughput of data-parallel training in PyTorch",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    author="dpdoctor contributors",
    license="MIT",
    license_files=["LICENSE"],
    keywords=["pytorch", "profiler", "distributed", "data parallel", "throughput"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Debuggers",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    # `dpdoctor sample` hands out the samples, which stand beside the package in a checkout.
    packages=[*find_packages(include=["dpdoctor", "dpdoctor.*"]), "dpdoctor.samples"],
    package_dir={"dpdoctor.samples": "samples"},
    package_data={
        "dpdoctor": ["py.typed", "run.schema.json"],
        "dpdoctor.report": ["**/*.html", "**/*.css", "**/*.js"],
    },
    entry_points={"console_scripts": ["dpdoctor=dpdoctor.__main__:run"]},
    install_requires=[
        "torch>=2.11",
        "torchvision",
        "nvidia-ml-py",
        "plotly",
        "click",
        "rich",
        "msgspec",
        "numpy",
        "scipy",
        "jinja2",
        "psutil",
    ],
    extras_require={"test": TEST, "docs": DOCS, "dev": DEV, "benchmark": BENCHMARK, "frameworks": FRAMEWORKS},
)
