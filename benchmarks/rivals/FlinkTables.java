import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.util.Collector;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.sink.dynamic.DynamicIcebergSink;
import org.apache.iceberg.flink.sink.dynamic.DynamicRecord;
import org.apache.iceberg.flink.sink.dynamic.DynamicRecordGenerator;

/** Runs Iceberg's dynamic sink in Flink's own mini-cluster: FlinkTables SETTINGS SOURCE CATALOG.
 *
 *  SETTINGS and CATALOG hold one key=value per line, SOURCE the statement that makes the table
 *  `source`. Its column `kind` says which table of the namespace `bench` a row goes to. It waits
 *  for a line of input, so that start-up and work can be told apart.
 */
public class FlinkTables {
    public static void main(String[] files) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment
            .getExecutionEnvironment(Configuration.fromMap(entries(files[0])));
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.executeSql(Files.readString(Path.of(files[1])));
        Table source = tables.from("source");
        DataType type = source.getResolvedSchema().toSourceRowDataType().notNull();
        DataStream<RowData> rows = tables.toDataStream(source, type.bridgedTo(RowData.class));
        Map<String, String> catalog = entries(files[2]);
        DynamicIcebergSink.<RowData>forInput(rows)
            .generator(new ByKind(FlinkSchemaUtil.convert(source.getResolvedSchema())))
            .catalogLoader(CatalogLoader.custom(
                "lake", catalog, new org.apache.hadoop.conf.Configuration(),
                "org.apache.iceberg.jdbc.JdbcCatalog"))
            .writeParallelism(environment.getParallelism())
            .append();
        System.out.println("READY");
        System.in.read();
        environment.execute();
    }

    private static Map<String, String> entries(String file) throws Exception {
        return Files.readAllLines(Path.of(file)).stream().collect(Collectors.toMap(
            line -> line.substring(0, line.indexOf('=')),
            line -> line.substring(line.indexOf('=') + 1)));
    }

    /** Names each row's table by its column `kind`. */
    static class ByKind implements DynamicRecordGenerator<RowData> {
        private final Schema schema;
        private final int kind;

        ByKind(Schema schema) {
            this.schema = schema;
            kind = schema.columns().indexOf(schema.findField("kind"));
        }

        @Override
        public void generate(RowData row, Collector<DynamicRecord> out) {
            TableIdentifier table = TableIdentifier.of("bench", row.getString(kind).toString());
            out.collect(new DynamicRecord(
                table, "main", schema, row, PartitionSpec.unpartitioned(), DistributionMode.NONE,
                -1));
        }
    }
}
