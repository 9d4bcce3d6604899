"""A member of a group with confluent-kafka: BROKERS TOPIC GROUP range|cooperative-sticky [INSTANCE].

Says what happens to it, a JSON object on each line, and commits whatever it has said before it asks for more.
"""

import json
import signal
import sys

from confluent_kafka import Consumer, KafkaException

brokers, topic, group, strategy = sys.argv[1:5]
going = True


def stop(*_):
    global going
    going = False


def say(event):
    return lambda _, parts: print(json.dumps({"event": event, "partitions": [part.partition for part in parts]}), flush=True)


signal.signal(signal.SIGTERM, stop)
settings = {
    "bootstrap.servers": brokers, "group.id": group, "partition.assignment.strategy": strategy, "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": 30000, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 200,
}
if len(sys.argv) > 5:
    settings["group.instance.id"] = sys.argv[5]
consumer = Consumer(settings)
consumer.subscribe([topic], on_assign=say("assigned"), on_revoke=say("revoked"), on_lost=say("lost"))
while going:
    spans = {}
    for message in consumer.consume(100, 0.2):
        if message.error():
            print(message.error(), file=sys.stderr)
            continue
        spans.setdefault(message.partition(), []).append(message.offset())
    for partition, offsets in spans.items():
        print(json.dumps({"event": "records", "partition": partition, "first": offsets[0], "last": offsets[-1]}), flush=True)
    if spans:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            print(error, file=sys.stderr)
consumer.close()
