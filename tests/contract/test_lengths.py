"""The check of `make lint` that no file is longer than 400 lines can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_file_that_is_too_long_is_named_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "lengths.py"
    script.write_bytes((ROOT / "tools" / "lengths.py").read_bytes())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "long.py").write_text("1\n" * 401, encoding="ascii")
    (tmp_path / "tests" / "short.py").write_text("1\n" * 400, encoding="ascii")

    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert ran.stderr == "tests/long.py has 401 lines; split it by subject, so that no file has more than 400\n"
