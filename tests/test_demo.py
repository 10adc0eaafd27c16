"""The main job of the README, as short as it may be: an agent is killed, resumed and forked, and compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_main_job_ends_well(tmp_path: Path) -> None:
    paths = [str(ROOT / "tools"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-m", "demo_agent", "--steps", "20", "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "All states are as they should be." in ended.stderr
    assert json.loads(ended.stdout)
