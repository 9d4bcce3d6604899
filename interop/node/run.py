"""kafkajs, from the npm registry, against `tramline serve`: `checks.test.js` under node's own test runner."""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import Suite, run  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ANY = "."

suite = Suite("node", tools=["node", "npm"])


def main():
    for name in ["package.json", "checks.test.js"]:
        shutil.copy(os.path.join(HERE, name), suite.place)
    if not os.path.isdir(os.path.join(suite.place, "node_modules", "kafkajs")):
        run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=suite.place, timeout=300)
    broker = suite.start()
    suite.version(f"kafkajs {run(['node', '-p', 'require(`kafkajs/package.json`).version'], cwd=suite.place).strip()}, "
                  f"node {run(['node', '--version']).strip()}")
    environment = {**os.environ, "TRAMLINE_BROKER": broker.address, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    command = ["node", "--test", "--test-reporter=tap", f"--test-name-pattern={suite.arguments.only or ANY}", "checks.test.js"]
    done = subprocess.run(command, cwd=suite.place, env=environment, capture_output=True, text=True, timeout=600)
    results = re.findall(r"^ *(ok|not ok) \d+ - (.*?)(?: # (SKIP|TODO).*)?$", done.stdout, re.MULTILINE)
    for how, test, directive in results:
        if test.endswith("checks.test.js"):
            continue
        if directive:
            suite.skip(test, "by --only")
        elif how == "ok":
            suite.passes(test)
        else:
            at = done.stdout.index(f"not ok", done.stdout.index(test) - 12)
            suite.fails(test, done.stdout[at : at + 1500])
    if done.returncode != 0 and suite.failed == 0 or not results:
        suite.fails("the run as a whole", done.stdout[-2000:] + done.stderr[-2000:])
    suite.finish()


main()
