import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Java's HttpClient, which asks for HTTP/2 unless it is told not to. */
public class Client {
    static final String BOUNDARY = "----JavaBoundary7MA4YWxkTrZu0gW";
    static final String PARAMETERS =
            "{\"borderMtaData\":{\"envelopeFrom\":\"a@example.org\",\"envelopeRecipients\":[\"b@example.net\"]}}";

    static final String LIST = "\"listName\":\"blocked-senders\"";

    final HttpClient http;
    final String url;
    final String way;

    Client(HttpClient http, String url, String way) {
        this.http = http;
        this.url = url;
        this.way = way;
    }

    public static void main(String[] urls) throws Exception {
        SSLContext tls = trusting(System.getenv("CA"));
        for (String url : urls) {
            for (HttpClient.Version version : HttpClient.Version.values()) {
                for (String way : new String[] {"length", "chunks", "expect"}) {
                    HttpClient http = HttpClient.newBuilder().version(version).sslContext(tls).build();
                    new Client(http, url, way).use();
                }
            }
        }
    }

    static SSLContext trusting(String file) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (FileInputStream in = new FileInputStream(file)) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    void use() throws Exception {
        say("submit", "decision", submit(System.getenv("TOKEN")));
        HttpRequest status = HttpRequest.newBuilder(URI.create(url + "/v1/admin/status"))
                .header("Authorization", "Bearer " + System.getenv("TOKEN"))
                .POST(BodyPublishers.noBody()).build();
        say("status", "messageQueueStatus", send(status));
        HttpResponse<String> known = lists("getLists", "{}");
        Matcher ours = Pattern.compile("\"listName\": \"([^\"]+)\", \"listInfo\": \\{\"displayName\": \"Blocked senders\"")
                .matcher(known.body());
        System.out.println("lists " + known.statusCode() + " " + (ours.find() ? ours.group(1) : known.body()));
        say("add", "modifiedEntries", lists("addEntries", entries("{\"entry\":\"user%d@example.org\"}")));
        HttpResponse<String> all = lists("listEntries", "{" + LIST + "}");
        System.out.println("download " + all.statusCode() + " " + all.body().lines().count());
        say("delete", "modifiedEntries", lists("deleteEntries", entries("\"user%d@example.org\"")));
        say("wrong", "error", submit("wrong"));
    }

    HttpResponse<String> submit(String token) throws Exception {
        byte[] body = form();
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + "/v1/messageQueue/submitEmail"))
                .header("Authorization", "Bearer " + token)
                .header("Content-Type", "multipart/form-data; boundary=" + BOUNDARY)
                // JDK 17 waits forever for 100 Continue if the answer is a refusal: curl and Go test that.
                .expectContinue(way.equals("expect") && !token.equals("wrong"));
        if (way.equals("chunks")) {
            return send(request.POST(BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body))).build());
        }
        return send(request.POST(BodyPublishers.ofByteArray(body)).build());
    }

    static byte[] form() throws Exception {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        body.write(("--" + BOUNDARY + "\r\nContent-Disposition: form-data; name=\"parameters\"\r\n"
                + "Content-Type: application/json\r\n\r\n" + PARAMETERS + "\r\n--" + BOUNDARY
                + "\r\nContent-Disposition: form-data; name=\"email\"; filename=\"größe.eml\"\r\n"
                + "Content-Type: message/rfc822\r\n\r\n").getBytes(StandardCharsets.UTF_8));
        body.write(Files.readAllBytes(Path.of(System.getenv("MAIL"))));
        body.write(("\r\n--" + BOUNDARY + "--\r\n").getBytes(StandardCharsets.UTF_8));
        return body.toByteArray();
    }

    static String entries(String form) {
        String all = IntStream.range(0, 500).mapToObj(number -> String.format(form, number))
                .collect(Collectors.joining(","));
        return "{" + LIST + ",\"entries\":[" + all + "]}";
    }

    HttpResponse<String> lists(String operation, String body) throws Exception {
        return send(HttpRequest.newBuilder(URI.create(url + "/api/public/lists/v1/" + operation))
                .header("Authorization", "apikey " + System.getenv("KEY"))
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body)).build());
    }

    HttpResponse<String> send(HttpRequest request) throws Exception {
        return http.send(request, BodyHandlers.ofString());
    }

    static void say(String name, String field, HttpResponse<String> answer) {
        Matcher found = Pattern.compile("\"" + field + "\": \"?(\\w+)").matcher(answer.body());
        System.out.println(name + " " + answer.statusCode() + " " + (found.find() ? found.group(1) : answer.body()));
    }
}
