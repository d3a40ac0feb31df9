// Answers GET requests, for what shows a run: a Prometheus endpoint, the page of a run. Not a web server: one thread,
// no TLS, no keep-alive, and nothing is read from a request but its path.
//
// Clients are hostile until proven otherwise: requests are limited in size, connections in number and time, none of
// them is waited for, silent ones make room for others, and where only this machine may connect, requests for other
// host names are refused (a web page elsewhere could otherwise read the answers through its reader's browser).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace concord {

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

class HttpServer {
 public:
  // Called on the server's thread, one at a time, with the path of a request ("/metrics"), without its query. What it
  // throws becomes a response with status 500.
  using Handler = std::function<HttpResponse(const std::string& path)>;

  // Listens at |host|, an address of this machine (127.0.0.1, ::1, 0.0.0.0), from now on; |port| 0 is any free one.
  // Throws ConfigError if that is not possible. |purpose| ("prometheus") begins the sentence.
  HttpServer(const std::string& purpose, const std::string& host, int port, Handler handler);
  ~HttpServer();  // drops connections and ends the thread; waits for a handler that runs
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:9400"

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Pure: the response to |request|, the text up to and with its empty line. |only_local|: Host has to be this machine.
std::string http_answer(std::string_view request, bool only_local, const HttpServer::Handler& handler);

}  // namespace concord
