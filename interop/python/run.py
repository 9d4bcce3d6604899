"""confluent-kafka, aiokafka and kafka-python, from PyPI, against `tramline serve`; each in its own process, each check a line of its own."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import Suite, run  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
# The first is what a smoke runs.
PACKAGES = {
    "confluent-kafka": ["confluent-kafka==2.*"],
    "aiokafka": ["aiokafka==0.14.0", "cramjam==2.*"],
    "kafka-python": ["kafka-python==3.0.12", "lz4", "python-snappy", "zstandard"],
}

suite = Suite("python")


def environment(package):
    """A virtual environment with one client in it; the place of its python."""
    place = os.path.join(suite.place, package)
    python = os.path.join(place, "bin", "python")
    marker = os.path.join(place, "installed")
    if not os.path.exists(marker):
        run([sys.executable, "-m", "venv", place])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[package]], timeout=600)
        with open(marker, "w", encoding="utf-8") as file:
            file.write("\n".join(PACKAGES[package]))
    return python


def main():
    places = {package: environment(package) for package in list(PACKAGES)[: 1 if suite.smoke else None]}
    broker = suite.start()
    for package, python in places.items():
        # confluent-kafka's checks kill their broker.
        peer = suite.arguments.binary if package == "confluent-kafka" else broker.address
        script = os.path.join(HERE, package.replace("-", "_") + "_checks.py")
        done = subprocess.run([python, script, peer, suite.arguments.only], capture_output=True, text=True, timeout=600)
        for line in done.stdout.splitlines():
            how, _, rest = line.partition(" ")
            test, _, why = rest.partition(": ")
            if f"{package} {test}" in suite.skips:
                suite.skip(f"{package} {test}", suite.skips[f"{package} {test}"])
            elif how == "ok":
                suite.passes(f"{package} {test}", why)
            elif how == "FAILED":
                suite.fails(f"{package} {test}", why)
            else:
                suite.version(line)
        if done.returncode != 0:
            suite.fails(f"{package} as a whole", (done.stdout[-500:] + done.stderr[-1500:]).strip())
    suite.finish()


main()
