import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.utils.converter.avro.AvroData;
import io.apicurio.registry.serde.avro.NonRecordContainer;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.FileReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceRecord;

/** Debezium's embedded engine. Records go to TOPIC, or ("") to their own, by the hash of their keys,
 *  as JSON, or in the Avro of Connect's converters, with their schemas in a registry:
 *  DebeziumToKafka SETTINGS BOOTSTRAP TOPIC [REGISTRY].
 */
public class DebeziumToKafka {
    interface Encoder<T> {
        byte[] key(String topic, ChangeEvent<T, T> event) throws IOException;

        byte[] value(String topic, ChangeEvent<T, T> event) throws IOException;
    }

    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(given[0])) {
            settings.load(file);
        }
        if (given.length > 3) {
            run(DebeziumEngine.create(Connect.class), settings, new Avro(given[3]), given);
        } else {
            run(DebeziumEngine.create(Json.class), settings, new Text(), given);
        }
    }

    static <T> void run(DebeziumEngine.Builder<ChangeEvent<T, T>> builder, Properties settings,
            Encoder<T> encoder, String[] given) {
        Properties kafka = new Properties();
        kafka.setProperty("bootstrap.servers", given[1]);
        kafka.setProperty("acks", "all");
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        kafka.setProperty("key.serializer", bytes);
        kafka.setProperty("value.serializer", bytes);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(kafka);
        builder
            .using(settings)
            .notifying((records, committer) -> {
                List<Future<?>> sent = new ArrayList<>();
                try {
                    for (ChangeEvent<T, T> record : records) {
                        String topic = given[2].isEmpty() ? record.destination() : given[2];
                        sent.add(producer.send(new ProducerRecord<>(
                            topic, encoder.key(topic, record), encoder.value(topic, record))));
                    }
                    for (Future<?> each : sent) {
                        each.get();
                    }
                } catch (java.util.concurrent.ExecutionException | IOException error) {
                    throw new IllegalStateException(error);
                }
                for (ChangeEvent<T, T> record : records) {
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
            })
            .using((success, message, error) -> System.err.println(message + " " + error))
            .build()
            .run();
    }

    static class Text implements Encoder<String> {
        public byte[] key(String topic, ChangeEvent<String, String> event) {
            return bytes(event.key());
        }

        public byte[] value(String topic, ChangeEvent<String, String> event) {
            return bytes(event.value());
        }

        private static byte[] bytes(String text) {
            return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
        }
    }

    static class Avro implements Encoder<SourceRecord> {
        private final String registry;
        private final HttpClient http = HttpClient.newHttpClient();
        private final ObjectMapper json = new ObjectMapper();
        private final AvroData data = new AvroData(1000);
        private final Map<String, Integer> ids = new HashMap<>();

        Avro(String registry) {
            this.registry = registry;
        }

        public byte[] key(String topic, ChangeEvent<SourceRecord, SourceRecord> event)
                throws IOException {
            SourceRecord record = event.value();
            return encoded(topic + "-key", record.keySchema(), record.key());
        }

        public byte[] value(String topic, ChangeEvent<SourceRecord, SourceRecord> event)
                throws IOException {
            SourceRecord record = event.value();
            return encoded(topic + "-value", record.valueSchema(), record.value());
        }

        private byte[] encoded(String subject, Schema schema, Object value) throws IOException {
            if (value == null) {
                return null;
            }
            org.apache.avro.Schema avro = data.fromConnectSchema(schema);
            Object datum = data.fromConnectData(schema, value);
            if (datum instanceof NonRecordContainer) {
                datum = ((NonRecordContainer) datum).getValue();
            }
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream head = new DataOutputStream(bytes);
            head.writeByte(0);
            head.writeInt(id(subject, avro.toString()));
            head.flush();
            BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(bytes, null);
            new GenericDatumWriter<Object>(avro).write(datum, encoder);
            encoder.flush();
            return bytes.toByteArray();
        }

        private int id(String subject, String schema) throws IOException {
            Integer known = ids.get(subject + schema);
            if (known == null) {
                HttpRequest request = HttpRequest
                    .newBuilder(URI.create(registry + "/subjects/" + subject + "/versions"))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(
                        json.writeValueAsString(Map.of("schema", schema))))
                    .build();
                try {
                    String said = http.send(request, HttpResponse.BodyHandlers.ofString()).body();
                    known = json.readTree(said).required("id").asInt();
                } catch (InterruptedException error) {
                    throw new IOException(error);
                }
                ids.put(subject + schema, known);
            }
            return known;
        }
    }
}
