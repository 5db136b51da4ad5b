from pathlib import Path
from runpy import run_path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
KERAS = ["keras==3.15.1", "tf-keras==2.20.1"]

setup(
    name="tf_simigrad",
    version=run_path(str(ROOT / "tf_simigrad" / "_version.py"))["__version__"],
    description="Adaptive batch sizes for Keras: one callback sets the batch size from the similarity of gradients",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The tf_simigrad authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["tensorflow", "keras", "large-batch training", "adaptive batch size", "gradient accumulation", "SimiGrad"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["tf_simigrad", "tf_simigrad.*"]),
    package_data={"tf_simigrad": ["py.typed"]},
    zip_safe=False,
    # The pinned sets below are tested together on Python 3.11, the only version that the main set and the addons set share.
    python_requires=">=3.11,<3.12",
    # TensorFlow is an extra: tf-keras, tensorflow-text and tf-models-official require the distribution called `tensorflow`,
    # so beside tensorflow-tpu pip would unpack two TensorFlows over each other. Choose one of cpu, gpu, tpu and addons.
    install_requires=["numpy"],
    extras_require={
        "cpu": ["tensorflow==2.20.0", *KERAS],
        "gpu": ["tensorflow[and-cuda]==2.20.0", *KERAS],
        # tf-keras requires the distribution `tensorflow`: on a TPU install it, and what `models` lists, with --no-deps.
        "tpu": ["tensorflow-tpu==2.20.0", "libtpu==0.0.20", "keras==3.15.1"],
        "models": [
            "tf-models-official==2.20.0",
            "tensorflow-text==2.20.1",
            # On a Mac it asks for tensorflow-macos, which ended with TensorFlow 2.16.
            "tensorflow-recommenders==0.7.7; sys_platform != 'darwin'",
            "scikit-learn",
            "tokenizers==0.23.3",
            "safetensors==0.8.0",
        ],
        # TensorFlow Addons ended with TensorFlow 2.15, so this set excludes cpu, gpu, tpu and models.
        "addons": [
            "tensorflow==2.15.1",
            "keras==2.15.0",
            "tensorflow-addons==0.23.0",
            "tf-models-official==2.15.0",
            "tensorflow-text==2.15.0",
            "numpy==1.26.4",
            "tensorflow-metadata<1.16",
        ],
        "plot": ["matplotlib"],
        "test": ["tqdm", "pytest", "pytest-cov", "pytest-timeout", "ruff", "mypy", "build", "scikit-learn", "matplotlib"],
    },
)
