from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# What the pages say, the folder it is typed in, and the server of this process.
sys.path[:0] = [str(HERE), str(HERE.parent / "engine" / "server")]
