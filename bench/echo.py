"""The floor: what one hop through a client costs. Passes each failed login on, and counts nothing.

Arguments: bootstrap-servers topic-in topic-out consumer-group. Runs until SIGTERM.
"""

import json
import signal
import sys

from confluent_kafka import Consumer, Producer


def main() -> None:
    """Pass on until told to stop."""
    servers, topic_in, topic_out, group = sys.argv[1:]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    consumer.subscribe([topic_in])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            event = json.loads(message.value() or b"{}")
            if event.get("action") == "login failed":
                finding = {"entity": {"user_id": event["user_id"]}, "event_time_max": event["event_time"]}
                producer.produce(topic_out, json.dumps(finding).encode(), message.key())
                producer.poll(0)
    finally:
        producer.flush(5)
        consumer.close()


if __name__ == "__main__":
    main()
