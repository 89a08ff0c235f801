import com.amazonaws.services.schemaregistry.serializers.GlueSchemaRegistryKafkaSerializer;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.TimestampProto;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;

/**
 * Writes values as AWS's own serializer does: a line in (format, compression, schema's name, schema,
 * JSON of the value, with tabs between), a line of Base64 out. A message's schema is a descriptor in
 * Base64, its value Base64 behind the name of its type and a colon.
 */
public class GlueSerializer {
  public static void main(String[] args) throws Exception {
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    var keys = StaticCredentialsProvider.create(AwsBasicCredentials.create(args[2], args[3]));
    Map<String, GlueSchemaRegistryKafkaSerializer> known = new HashMap<>();
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] part = line.split("\t", -1);
      var serializer =
          known.computeIfAbsent(
              part[0] + part[1] + part[2],
              name -> new GlueSchemaRegistryKafkaSerializer(keys, settings(args, part)));
      byte[] written = serializer.serialize("topic", value(part[0], part[3], part[4]));
      System.out.println(Base64.getEncoder().encodeToString(written));
    }
  }

  private static Map<String, Object> settings(String[] args, String[] part) {
    return Map.of(
        "endpoint", args[0],
        "region", args[1],
        "dataFormat", part[0],
        "compression", part[1],
        "schemaName", part[2],
        "schemaAutoRegistrationEnabled", true,
        "compatibility", "NONE");
  }

  private static Object value(String format, String schema, String text) throws Exception {
    if (format.equals("JSON")) {
      return JsonDataWithSchema.builder(schema, text).build();
    }
    if (format.equals("AVRO")) {
      Schema parsed = new Schema.Parser().parse(schema);
      var decoder = DecoderFactory.get().jsonDecoder(parsed, text);
      return new GenericDatumReader<>(parsed).read(null, decoder);
    }
    var file = FileDescriptorProto.parseFrom(Base64.getDecoder().decode(schema));
    FileDescriptor[] known = {TimestampProto.getDescriptor()};
    FileDescriptor built = FileDescriptor.buildFrom(file, known);
    String[] named = text.split(":");
    Descriptor type = null;
    for (String name : named[0].split("\\.")) {
      type = type == null ? built.findMessageTypeByName(name) : type.findNestedTypeByName(name);
    }
    return DynamicMessage.parseFrom(type, Base64.getDecoder().decode(named.length > 1 ? named[1] : ""));
  }
}
