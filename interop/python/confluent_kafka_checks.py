"""confluent-kafka's checks: `confluent_kafka_checks.py BROKER-BINARY [TEXT-IN-THE-NAME]`; one line for each, read by `run.py`.

With a broker of its own, which some of the checks kill.
"""

import os
import sys
import time
import traceback

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import CODECS, Broker, stored_codecs  # noqa: E402

DEADLINE = 60.0
broker = Broker(sys.argv[1])


def payloads(count):
    return [f"record {n} ".encode() * 4 for n in range(count)]


def create(topic, partitions=1):
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])[topic].result(timeout=DEADLINE)


def produce(topic, values, codec="none", keys=None):
    failures = []
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 5,
                         "acks": "all", "enable.idempotence": True})

    def delivered(error, _):
        if error:
            failures.append(error)

    for n, value in enumerate(values):
        producer.produce(topic, value, key=keys[n] if keys else None, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(DEADLINE)
    assert not left and not failures, f"{left} unsent, failures {failures[:3]}"


def read(consumer, count):
    values, until = [], time.monotonic() + DEADLINE
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        values.append(message.value())
    return values


def reader(topic):
    """A consumer of partition 0 from its start that is in no group."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def member(group, topic, **more):
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group, "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "session.timeout.ms": 10000, **more})
    consumer.subscribe([topic])
    return consumer


def codec(name):
    def check():
        topic, values = f"codec-{name}", payloads(2000)
        create(topic)
        produce(topic, values, name)
        consumer = reader(topic)
        got = read(consumer, len(values))
        consumer.close()
        assert got == values, f"{len(got)} of {len(values)} records came back"
        stored = stored_codecs(broker, topic)
        assert stored == {CODECS[name]}, f"stored as {stored}"
    check.__name__ = f"check_codec_{name}"
    return check


def check_a_group_resumes_after_a_kill():
    topic, values = "resume", payloads(500)
    create(topic)
    produce(topic, values)
    consumer = member("billing", topic)
    first = read(consumer, 200)
    consumer.commit(asynchronous=False)
    assert first == values[:200], "the first two hundred, in order"
    broker.kill()
    broker.start()
    rest = read(consumer, 300)
    assert rest == values[200:], f"{len(rest)} records after the restart, expected the remaining 300"
    consumer.commit(asynchronous=False)
    consumer.close()
    produce(topic, payloads(10))
    again = member("billing", topic)
    assert read(again, 10) == payloads(10), "a new member begins at the commit"
    again.close()


def check_running_members_go_on_after_a_kill_without_a_rebalance():
    topic = "steady"
    create(topic, 4)
    revoked, assigned = [], []
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "session.timeout.ms": 30000, "heartbeat.interval.ms": 500})
    consumer.subscribe([topic], on_assign=lambda _, parts: assigned.extend(parts), on_revoke=lambda _, parts: revoked.extend(parts),
                       on_lost=lambda _, parts: revoked.extend(parts))
    produce(topic, payloads(100), keys=[str(n) for n in range(100)])
    assert len(read(consumer, 100)) == 100
    for _ in range(3):
        broker.kill()
        broker.start()
        produce(topic, payloads(100), keys=[str(n) for n in range(100)])
        assert len(read(consumer, 100)) == 100
        consumer.commit(asynchronous=False)
    assert len(assigned) == 4 and not revoked, f"assigned {len(assigned)}, taken away {len(revoked)}"
    consumer.close()


def check_acknowledged_records_survive_a_kill():
    topic, values = "survive", payloads(3000)
    create(topic)
    produce(topic, values[:2000], "lz4")
    broker.kill()
    broker.start()
    produce(topic, values[2000:], "lz4")
    consumer = reader(topic)
    assert read(consumer, 3000) == values
    consumer.close()


def check_two_members_share_a_topic():
    topic, count = "shared", 400
    create(topic, 4)
    produce(topic, payloads(count), keys=[f"key {n}" for n in range(count)])
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    members = [member("pair", topic, **strategy) for _ in range(2)]
    seen, owned, until = set(), [set(), set()], time.monotonic() + DEADLINE
    while time.monotonic() < until:
        for consumer in members:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                seen.add((message.partition(), message.offset()))
        owned = [{place.partition for place in consumer.assignment()} for consumer in members]
        if len(seen) == count and owned[0] and owned[1]:
            break
    for consumer in members:
        consumer.close()
    assert len(seen) == count, f"{len(seen)} of {count} records"
    assert owned[0].isdisjoint(owned[1]) and owned[0] | owned[1] == {0, 1, 2, 3}, f"assignment {owned}"


def main():
    print(f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}")
    checks = [codec(name) for name in CODECS]
    checks += [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        if len(sys.argv) > 2 and sys.argv[2] not in f"confluent-kafka {name}":
            continue
        try:
            check()
        except (AssertionError, KafkaException) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {name}: {type(error).__name__} {error} (line {where.lineno})".replace("\n", " "), flush=True)
        else:
            print(f"ok {name}", flush=True)
    status = broker.stop()
    print("ok clean stop on SIGTERM" if status == 0 else f"FAILED clean stop on SIGTERM: exit status {status}")
    broker.remove()


main()
