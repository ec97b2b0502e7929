"""Files of others that `launch/fetch_parity.sh` fetches, too large for this repository: where they are."""

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PIXELIS_PARITY") or Path(__file__).parents[2] / ".cache" / "parity")
REMEDY = "not fetched: ./launch/fetch_parity.sh"


def tokenizer(name: str) -> Path:
    """Folder of a published tokenizer. Skips the test where it was not fetched."""
    folder = FOLDER / f"tokenizer-{name}"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"the tokenizer of {name} is {REMEDY}")
    return folder


def add_packages() -> None:
    """Makes the fetched Python packages importable, behind all others."""
    sys.path.append(str(FOLDER / "python"))
