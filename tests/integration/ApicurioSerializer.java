import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * Writes Avro as Apicurio's own serializer does, with ids in headers: JSON of a value in, a line of
 * Base64 out, and behind tabs each header as NAME=BASE64.
 */
public class ApicurioSerializer {
  public static void main(String[] args) throws Exception {
    var serializer = new AvroKafkaSerializer<Object>();
    serializer.configure(
        Map.of(
            "apicurio.registry.url", args[0],
            "apicurio.registry.use-id", args[1],
            "apicurio.registry.headers.enabled", true,
            "apicurio.registry.auto-register", true),
        false);
    Schema schema = new Schema.Parser().parse(args[2]);
    var base64 = Base64.getEncoder();
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      var headers = new RecordHeaders();
      var decoder = DecoderFactory.get().jsonDecoder(schema, line);
      Object read = new GenericDatumReader<>(schema).read(null, decoder);
      var out = new StringBuilder(base64.encodeToString(serializer.serialize("topic", headers, read)));
      for (Header header : headers) {
        out.append("\t").append(header.key()).append("=");
        out.append(base64.encodeToString(header.value()));
      }
      System.out.println(out);
    }
    System.exit(0);
  }
}
