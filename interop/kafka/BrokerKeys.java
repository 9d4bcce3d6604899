// The settings of a running broker as rows of crates/broker/src/broker_keys.rs: name, kind, default.
// Run by `cargo xtask kafka keys` with the address as its argument.

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.common.config.ConfigResource;

public class BrokerKeys {
    public static void main(String[] arguments) throws Exception {
        var node = new ConfigResource(ConfigResource.Type.BROKER, "1");
        var options = new DescribeConfigsOptions().includeSynonyms(true);
        var rows = new TreeMap<String, String>();
        try (var admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            for (var entry : admin.describeConfigs(List.of(node), options).all().get().get(node).entries()) {
                rows.put(entry.name(), row(entry));
            }
        }
        rows.values().forEach(System.out::println);
    }

    private static String row(ConfigEntry entry) {
        // What this one broker was started with comes before its default; a default of null is not among them.
        var value = entry.synonyms().stream()
            .filter(synonym -> synonym.source() == ConfigEntry.ConfigSource.DEFAULT_CONFIG)
            .map(synonym -> "Some(\"" + synonym.value().replace("\\", "\\\\").replace("\"", "\\\"") + "\")")
            .findFirst()
            .orElse("None");
        var kind = entry.type().name();
        kind = kind.charAt(0) + kind.substring(1).toLowerCase();
        return "    (\"" + entry.name() + "\", " + kind + ", " + value + "),";
    }
}
