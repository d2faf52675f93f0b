import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * A view for Kafka Streams with Redis behind it, at least once: each row is written with one HSET that is waited for,
 * before its offset is committed.
 *
 * <p>Arguments: bootstrap-servers topic application-id state-folder redis-port redis-password table what. With the last
 * "count" the topic holds events, of which failed logins are counted for each user; with "copy" it holds the rows of a
 * view, which are written as they are. Runs until SIGTERM.
 */
public final class FailureView {
    private static final ObjectMapper JSON = new ObjectMapper();

    private FailureView() {}

    public static void main(String[] args) throws IOException {
        Redis redis = new Redis(Integer.parseInt(args[4]), args[5], args[6]);
        Topology topology = args[7].equals("count") ? count(args[1], redis) : copy(args[1], redis);
        KafkaStreams streams = new KafkaStreams(topology, configuration(args[0], args[2], args[3]));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties configuration(String servers, String id, String folder) {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // else updates wait for a commit
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return config;
    }

    private static Topology count(String in, Redis redis) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(in, Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .mapValues(FailureView::failedAt)
                .filter((user, micros) -> micros >= 0)
                .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
                .aggregate(
                        () -> new Row(0, 0),
                        (user, micros, row) -> new Row(row.count() + 1, Math.max(row.latest(), micros)),
                        Materialized.with(Serdes.String(), rowSerde()))
                .toStream()
                .foreach((user, row) -> redis.put(user, row));
        return builder.build();
    }

    private static Topology copy(String in, Redis redis) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(in, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray())).foreach((key, value) -> {
            JsonNode row = parsed(value);
            JsonNode values = row.path("values");
            redis.put(
                    row.path("key").path("user_id").asText(),
                    new Row(values.path("count").asLong(), values.path("latest").asLong()));
        });
        return builder.build();
    }

    /** Microseconds since 1970 of a failed login; -1 for any other event, and for ticks. */
    private static long failedAt(byte[] value) {
        JsonNode event = parsed(value);
        return "login failed".equals(event.path("action").asText())
                ? ChronoUnit.MICROS.between(Instant.EPOCH, Instant.parse(event.path("event_time").asText()))
                : -1;
    }

    private static JsonNode parsed(byte[] value) {
        try {
            return JSON.readTree(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private record Row(long count, long latest) {}

    private static Serde<Row> rowSerde() {
        return Serdes.serdeFrom(
                (topic, row) -> ByteBuffer.allocate(16).putLong(row.count()).putLong(row.latest()).array(),
                (topic, bytes) -> {
                    ByteBuffer buffer = ByteBuffer.wrap(bytes);
                    return new Row(buffer.getLong(), buffer.getLong());
                });
    }

    /** As much of a client of Redis as is needed: one connection, one command at a time. */
    private static final class Redis {
        private final OutputStream out;
        private final InputStream in;
        private final String table;

        Redis(int port, String password, String table) throws IOException {
            Socket socket = new Socket("127.0.0.1", port);
            socket.setTcpNoDelay(true);
            out = new BufferedOutputStream(socket.getOutputStream());
            in = new BufferedInputStream(socket.getInputStream());
            this.table = table;
            ask("AUTH", password);
        }

        synchronized void put(String name, Row row) {
            try {
                ask("HSET", table + ":" + name, "count", Long.toString(row.count()), "latest", Long.toString(row.latest()));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private void ask(String... words) throws IOException {
            write("*" + words.length);
            for (String word : words) {
                byte[] bytes = word.getBytes(StandardCharsets.UTF_8);
                write("$" + bytes.length);
                out.write(bytes);
                write("");
            }
            out.flush();
            int kind = in.read();
            for (int last = 0, next = in.read(); last != '\r' || next != '\n'; last = next, next = in.read()) {
                if (next < 0) {
                    throw new IOException("Redis has hung up");
                }
            }
            if (kind == '-') {
                throw new IOException("Redis refuses " + words[0]);
            }
        }

        private void write(String line) throws IOException {
            out.write((line + "\r\n").getBytes(StandardCharsets.US_ASCII));
        }
    }
}
