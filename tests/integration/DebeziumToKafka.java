import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Debezium's embedded engine. Records go to TOPIC, or to their own, by the hash of their keys:
 *  DebeziumToKafka SETTINGS BOOTSTRAP [TOPIC].
 */
public class DebeziumToKafka {
    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(given[0])) {
            settings.load(file);
        }
        Properties kafka = new Properties();
        kafka.setProperty("bootstrap.servers", given[1]);
        kafka.setProperty("acks", "all");
        String text = "org.apache.kafka.common.serialization.StringSerializer";
        kafka.setProperty("key.serializer", text);
        kafka.setProperty("value.serializer", text);
        KafkaProducer<String, String> producer = new KafkaProducer<>(kafka);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings)
            .notifying((records, committer) -> {
                List<Future<?>> sent = new ArrayList<>();
                for (ChangeEvent<String, String> record : records) {
                    String topic = given.length > 2 ? given[2] : record.destination();
                    sent.add(producer.send(
                        new ProducerRecord<>(topic, record.key(), record.value())));
                }
                try {
                    for (Future<?> each : sent) {
                        each.get();
                    }
                } catch (java.util.concurrent.ExecutionException error) {
                    throw new IllegalStateException(error);
                }
                for (ChangeEvent<String, String> record : records) {
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
            })
            .using((success, message, error) -> System.err.println(message + " " + error))
            .build();
        engine.run();
    }
}
