// Asks a server with the JDK's HTTP client: `java Client.java URL MODEL`. Prints four lines.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;

public class Client {
    public static void main(String[] arguments) throws Exception {
        // Without this version, the client asks for an upgrade to HTTP/2, and such requests lose
        // their body, as with vLLM's server.
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        String chat =
                """
                {"model": "%s", "max_tokens": 6, "seed": 1, "stream": %s,
                 "messages": [{"role": "user", "content": "Hello!"}]}
                """;
        HttpRequest.Builder builder =
                HttpRequest.newBuilder(URI.create(arguments[0] + "/v1/chat/completions"))
                        .header("Content-Type", "application/json");
        HttpRequest whole =
                builder.POST(BodyPublishers.ofString(chat.formatted(arguments[1], "false"))).build();
        HttpResponse<String> answer = client.send(whole, BodyHandlers.ofString());
        System.out.println(answer.statusCode());
        System.out.println(answer.body());
        HttpRequest stream =
                builder.POST(BodyPublishers.ofString(chat.formatted(arguments[1], "true"))).build();
        long events =
                client.send(stream, BodyHandlers.ofLines())
                        .body()
                        .filter(line -> line.startsWith("data: "))
                        .count();
        System.out.println(events);
        HttpRequest wrong = builder.POST(BodyPublishers.ofString("{")).build();
        System.out.println(client.send(wrong, BodyHandlers.ofString()).statusCode());
    }
}
