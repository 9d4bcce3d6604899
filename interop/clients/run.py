"""kcat, from the machine, and confluent-kafka, from PyPI, against `tramline serve`: every codec, groups, kills of the broker."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import Suite, run  # noqa: E402

suite = Suite("clients")
place = os.path.join(suite.place, "venv")
python = os.path.join(place, "bin", "python")
if not os.path.exists(os.path.join(place, "installed")):
    run([sys.executable, "-m", "venv", place])
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "confluent-kafka==2.*"], timeout=600)
    open(os.path.join(place, "installed"), "w", encoding="utf-8").close()
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checks.py")
sys.exit(subprocess.run([python, script, suite.arguments.binary]).returncode)
