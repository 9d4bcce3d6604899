"""franz-go's own tests of its client (`kgo`), from the Go module proxy, against `tramline serve`."""

import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import Suite, run  # noqa: E402

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.3"
SMOKE = ["TestGroupETL", "TestGroupSimple", "TestClient_Produce", "TestPing", "TestConsumeRegex"]

suite = Suite("go", tools=["go"])


def prepare():
    """A module of our own whose only dependency is the one under test, so that its tests can be built from here."""
    place = os.path.join(suite.place, VERSION)
    binary = os.path.join(place, "kgo.test")
    if not os.path.exists(binary):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        run(["go", "mod", "init", "interop"], cwd=place)
        run(["go", "get", "-t", f"{MODULE}/pkg/kgo@{VERSION}"], cwd=place, timeout=300)
        run(["go", "test", "-c", "-o", binary, f"{MODULE}/pkg/kgo"], cwd=place, timeout=900)
    source = run(["go", "list", "-m", "-f", "{{.Dir}}", MODULE], cwd=place).strip()
    return binary, os.path.join(source, "pkg", "kgo")


def leaves(results):
    """The tests that have no subtests of their own."""
    return {name: how for name, how in results.items() if not any(other.startswith(name + "/") for other in results)}


def main():
    binary, source = prepare()
    broker = suite.start()
    print(f"franz-go {VERSION}, {run(['go', 'version']).split()[2]}", flush=True)
    wanted = suite.arguments.only or ("^(" + "|".join(SMOKE) + ")$" if suite.smoke else ".")
    left_out = "|".join(f"^{re.escape(name)}$" for name in suite.skips if "/" not in name) or "^$"
    environment = {**os.environ, "KGO_SEEDS": broker.address, "KGO_TEST_RF": "1",
                   "KGO_TEST_RECORDS": os.environ.get("KGO_TEST_RECORDS", "5000" if suite.smoke else "50000")}
    command = ["go", "tool", "test2json", "-p", "kgo", binary, "-test.v=test2json", "-test.timeout=15m",
               f"-test.run={wanted}", f"-test.skip={left_out}"]
    said, results = {}, {}
    child = subprocess.Popen(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with open(os.path.join(suite.place, "output.log"), "w", encoding="utf-8") as log:
        for line in child.stdout:
            event = json.loads(line) if line.startswith("{") else {"Action": "output", "Output": line}
            name = event.get("Test", "")
            if event["Action"] == "output":
                log.write(event["Output"])
                said.setdefault(name, []).append(event["Output"])
            elif event["Action"] == "run":
                results[name] = "never ended"
            elif name and event["Action"] in ("pass", "fail", "skip"):
                results[name] = event["Action"]
    child.wait()
    for name, how in sorted(leaves(results).items()):
        if how == "pass":
            suite.passed += 1
        elif how == "skip":
            suite.skip(name, suite.skips.get(name, "by the test itself: " + "".join(said.get(name, [])[-2:-1]).strip()))
        else:
            suite.fails(name, f"{how}: " + "".join(said.get(name, []))[-1500:].strip())
    for name in sorted(suite.skips):
        if re.search(wanted, name) and name not in results:
            suite.skip(name, suite.skips[name])
    if child.returncode != 0 and suite.failed == 0:
        suite.fails("the run as a whole", "".join(said.get("", []))[-3000:])
    suite.finish()


main()
