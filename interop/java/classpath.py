"""The class path of Kafka's clients and tools, from Maven."""

import hashlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import ROOT, run  # noqa: E402

SMALL_JVM = ["-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def classpath():
    """Maven's class path for `pom.xml`, kept until the file changes."""
    pom = os.path.join(HERE, "pom.xml")
    place = os.path.join(ROOT, "target", "interop", "java")
    os.makedirs(place, exist_ok=True)
    with open(pom, "rb") as file:
        kept = os.path.join(place, f"classpath-{hashlib.sha256(file.read()).hexdigest()[:12]}")
    if not os.path.exists(kept):
        run(["mvn", "-q", "-B", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={kept}"], timeout=600)
    with open(kept, encoding="utf-8") as file:
        return file.read().strip()
