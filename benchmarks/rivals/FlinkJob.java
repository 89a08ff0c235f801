import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Runs statements in Flink's own mini-cluster: FlinkJob SETTINGS STATEMENTS.
 *
 *  SETTINGS holds one key=value per line, STATEMENTS one statement per line. The last one waits
 *  for a line of input, so that start-up and work can be told apart.
 */
public class FlinkJob {
    public static void main(String[] files) throws Exception {
        Configuration settings = new Configuration();
        for (String line : Files.readAllLines(Path.of(files[0]))) {
            int sign = line.indexOf('=');
            settings.setString(line.substring(0, sign), line.substring(sign + 1));
        }
        StreamTableEnvironment tables = StreamTableEnvironment.create(
            StreamExecutionEnvironment.getExecutionEnvironment(settings));
        List<String> statements = Files.readAllLines(Path.of(files[1]));
        for (String statement : statements.subList(0, statements.size() - 1)) {
            tables.executeSql(statement);
        }
        System.out.println("READY");
        System.in.read();
        tables.executeSql(statements.get(statements.size() - 1)).await();
    }
}
