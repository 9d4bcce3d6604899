"""librdkafka's own test programs, built from the sources inside the `rdkafka-sys` crate, against `tramline serve`."""

import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import Suite, run  # noqa: E402

CRATE = "4.10.0"
AT_ONCE = 4
# A whole run passes at least so many.
FLOOR = 74
SMOKE = "0001 0004 0012 0017 0022 0030 0039 0044 0113"
# Those that talk to a broker (or say so of themselves), need no transactions and no Kafka scripts.
TESTS = """0011 0015 0029 0030 0031 0034 0054 0059 0064 0082 0091 0092 0093 0110 0118 0130 0153
0001 0002 0003 0004 0005 0006 0007 0008 0012 0013 0016 0017 0018 0019 0020 0021 0022 0025 0026 0033 0035 0036
0038 0039 0040 0041 0042 0043 0044 0045 0046 0050 0051 0055 0056 0057 0058 0060 0061 0062 0063 0065 0067 0069 0070 0073
0074 0076 0078 0083 0084 0085 0086 0089 0090 0095 0099 0100 0102 0106 0113 0114 0116 0120 0121 0122 0123 0125 0127 0131
0132 0136 0137 0140 0149 0150 0151 0152"""
MANIFEST = """[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[workspace]
[dependencies]
rdkafka-sys = "={crate}"
"""

suite = Suite("librdkafka", tools=["cargo", "bash", "gcc", "g++", "make"])


def prepare():
    """The built test programs' folder."""
    place = os.path.join(suite.place, CRATE)
    if not os.path.exists(os.path.join(place, "built")):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(os.path.join(place, "fetch", "src"))
        with open(os.path.join(place, "fetch", "Cargo.toml"), "w", encoding="utf-8") as file:
            file.write(MANIFEST.format(crate=CRATE))
        open(os.path.join(place, "fetch", "src", "lib.rs"), "w", encoding="utf-8").close()
        run(["cargo", "vendor", "--quiet", "vendor"], cwd=os.path.join(place, "fetch"), timeout=300)
        source = os.path.join(place, "librdkafka")
        shutil.copytree(os.path.join(place, "fetch", "vendor", "rdkafka-sys", "librdkafka"), source)
        for script in [*glob.glob(os.path.join(source, "**", "*.sh"), recursive=True), os.path.join(source, "configure")]:
            os.chmod(script, 0o755)
        run(["bash", "configure", "--disable-gssapi", "--disable-lz4-ext", "--disable-ssl", "--disable-curl"], cwd=source)
        run(["make", "-j2", "libs"], cwd=source, timeout=1200)
        run(["make", "-j2", "-C", "tests", "build"], cwd=source, timeout=1200)
        open(os.path.join(place, "built"), "w", encoding="utf-8").close()
    return os.path.join(place, "librdkafka", "tests")


def outcome(said, number):
    """What the runner itself says of the test of that number, its name first: PASSED, FAILED, SKIPPED or nothing."""
    found = re.findall(rf"Test ({number}_\w+) (PASSED|FAILED|SKIPPED)", said)
    wrong = [one for one in found if one[1] == "FAILED"]
    return (wrong or found or [(number, None)])[0]


def call(tests, number):
    """One call of the test runner, for one number: its exit status and all that it said."""
    environment = {**os.environ, "TEST_KAFKA_VERSION": "4.1.0", "LD_LIBRARY_PATH": "../src:../src-cpp", "TESTS": number}
    try:
        done = subprocess.run(["./test-runner", "-p1", "-Q", "-E"], cwd=tests, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=180)
        said, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        said, status = (late.stdout or b"").decode(errors="replace"), "none within 180 s"
    with open(os.path.join(suite.place, f"{number}.log"), "w", encoding="utf-8") as log:
        log.write(said)
    return status, said


def version(number):
    """RD_KAFKA_VERSION as people write it."""
    return ".".join(str(int(number[at : at + 2], 16)) for at in (2, 4, 6))


def main():
    tests = prepare()
    broker = suite.start()
    with open(os.path.join(tests, "test.conf"), "w", encoding="utf-8") as file:
        file.write(f"bootstrap.servers={broker.address}\n")
    library = re.search(r"define RD_KAFKA_VERSION +(0x\w+)", open(os.path.join(tests, "../src/rdkafka.h"), encoding="utf-8").read())
    suite.version(f"librdkafka {version(library.group(1))} of rdkafka-sys {CRATE}")
    numbers = [number for number in (SMOKE if suite.smoke else TESTS).split() if suite.arguments.only in number]
    for number in numbers:
        if number in suite.skips:
            suite.skip(number, suite.skips[number])
    numbers = [number for number in numbers if number not in suite.skips]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        calls = {pool.submit(call, tests, number): number for number in numbers}
        for done in concurrent.futures.as_completed(calls):
            status, said = done.result()
            name, how = outcome(said, calls[done])
            if how == "PASSED" and status == 0:
                suite.passes(name)
            elif how == "SKIPPED":
                suite.fails(name, "skipped itself, and is not on the allow-list")
            else:
                wrong = [line for line in said.splitlines() if re.search(r"failed at|assert|: Test fail", line)]
                suite.fails(name, f"{how}, exit status {status}: " + " / ".join(wrong[:3])[:500])
    if not (suite.smoke or suite.arguments.only) and suite.passed < FLOOR:
        suite.fails(f"at least {FLOOR} pass", f"{suite.passed} do")
    suite.finish()


main()
