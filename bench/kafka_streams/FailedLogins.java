import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashSet;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.TimestampExtractor;

/**
 * The detector failed_logins for Kafka Streams: failed logins per user and 10 seconds of event time, one output for each
 * value of the count above the limit. Unlike Tocsin it does not drop duplicates, and it trusts its input's partitioning
 * by user.
 *
 * <p>Arguments: bootstrap-servers topic-in topic-out application-id guarantee lowest-limit highest-limit state-folder.
 * Runs until SIGTERM.
 */
public final class FailedLogins {
    private static final Duration WINDOW = Duration.ofSeconds(10);
    private static final Duration LATENESS = Duration.ofSeconds(10);
    private static final ObjectMapper JSON = new ObjectMapper();

    private FailedLogins() {}

    public static void main(String[] args) {
        KafkaStreams streams = new KafkaStreams(
                topology(args[1], args[2], Limits.of(Long.parseLong(args[5]), Long.parseLong(args[6]))),
                configuration(args[0], args[3], args[4], args[7]));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties configuration(String servers, String id, String guarantee, String folder) {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        config.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // else updates wait for a commit
        config.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 0);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return config;
    }

    private static Topology topology(String in, String out, Limits limits) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(in, Consumed.with(Serdes.String(), eventSerde()).withTimestampExtractor(new EventTime()))
                .filter((user, event) -> event.failed())
                .groupByKey(Grouped.with(Serdes.String(), eventSerde()))
                .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, LATENESS))
                .aggregate(
                        () -> new Count(0, 0),
                        (user, event, count) -> count.plus(event),
                        Materialized.with(Serdes.String(), countSerde()))
                .toStream()
                .filter((window, count) -> limits.emit(count.score()))
                .map(FailedLogins::finding)
                .to(out, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    private static KeyValue<String, String> finding(Windowed<String> window, Count count) {
        ObjectNode value = JSON.createObjectNode();
        value.putObject("entity").put("user_id", window.key());
        value.put("window_start", window.window().startTime().toString());
        value.put("score", count.score());
        value.put("event_time_max", Instant.EPOCH.plus(count.latest(), ChronoUnit.MICROS).toString());
        return KeyValue.pair(window.key() + "|" + window.window().start(), value.toString());
    }

    /** Limit emission: every value up to the highest limit, the first above it, then each about 10 % above the last. */
    private record Limits(long lowest, long highest, Set<Long> rungs) {
        private static final long LARGEST_RUNG = 1_000_000_000;

        static Limits of(long lowest, long highest) {
            Set<Long> rungs = new HashSet<>();
            for (long rung = highest + 1; rung <= LARGEST_RUNG; rung = Math.max(rung + 1, rung + rung / 10)) {
                rungs.add(rung);
            }
            return new Limits(lowest, highest, rungs);
        }

        boolean emit(long score) {
            return score > lowest && (score <= highest || rungs.contains(score));
        }
    }

    private record Event(boolean failed, long micros) {}

    private record Count(long score, long latest) {
        Count plus(Event event) {
            return new Count(score + 1, Math.max(latest, event.micros()));
        }
    }

    private static final class EventTime implements TimestampExtractor {
        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            return ((Event) record.value()).micros() / 1000;
        }
    }

    private static Serde<Event> eventSerde() {
        return Serdes.serdeFrom((topic, event) -> {
            throw new UnsupportedOperationException("events are only read");
        }, FailedLogins::event);
    }

    private static Event event(String topic, byte[] bytes) {
        try {
            JsonNode node = JSON.readTree(bytes);
            Instant time = Instant.parse(node.path("event_time").asText());
            return new Event(
                    "login failed".equals(node.path("action").asText()), ChronoUnit.MICROS.between(Instant.EPOCH, time));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Serde<Count> countSerde() {
        return Serdes.serdeFrom(
                (topic, count) -> ByteBuffer.allocate(16).putLong(count.score()).putLong(count.latest()).array(),
                (topic, bytes) -> {
                    ByteBuffer buffer = ByteBuffer.wrap(bytes);
                    return new Count(buffer.getLong(), buffer.getLong());
                });
    }
}
