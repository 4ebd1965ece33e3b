import java.sql.*;
import java.util.*;

/** What a BI tool does by JDBC: URL, statement, query to cancel, values… are given; prints tables, rows, end. */
public class FlightJdbc {
    public static void main(String[] given) throws Exception {
        try (Connection connection = DriverManager.getConnection(given[0])) {
            List<String> tables = new ArrayList<>();
            try (ResultSet found = connection.getMetaData().getTables(null, null, "%", new String[] {"TABLE"})) {
                while (found.next()) tables.add(found.getString("TABLE_NAME"));
            }
            System.out.println("tables " + tables);
            List<String> columns = new ArrayList<>();
            try (ResultSet found = connection.getMetaData().getColumns(null, null, tables.get(0), "%")) {
                while (found.next()) columns.add(found.getString("COLUMN_NAME"));
            }
            System.out.println("columns " + columns);
            try (PreparedStatement statement = connection.prepareStatement(given[1])) {
                for (int at = 3; at < given.length; at++) statement.setLong(at - 2, Long.parseLong(given[at]));
                List<Long> rows = new ArrayList<>();
                try (ResultSet found = statement.executeQuery()) {
                    while (found.next()) rows.add(found.getLong(1));
                }
                System.out.println("rows " + rows);
            }
            try (Statement statement = connection.createStatement()) {
                new Timer(true).schedule(new TimerTask() {
                    public void run() {
                        try { statement.cancel(); } catch (SQLException error) { System.out.println(error); }
                    }
                }, 2000);
                long began = System.nanoTime();
                try (ResultSet found = statement.executeQuery(given[2])) {
                    while (found.next()) { }
                    System.out.println("not cancelled");
                } catch (SQLException error) {
                    System.out.println("cancelled after " + (System.nanoTime() - began) / 1000000 + " ms: " + error.getMessage());
                }
            }
            try (Statement statement = connection.createStatement();
                 ResultSet found = statement.executeQuery("select count(*) from " + tables.get(0))) {
                found.next();
                System.out.println("after " + found.getLong(1));
            }
        }
    }
}
