// A minimal HTTP server for GET requests that show a run: a Prometheus endpoint, the report page. One thread, no TLS,
// no keep-alive; only the path of a request is used.
//
// Clients are untrusted: requests are limited in size, connections in number and time; no client blocks others, and
// silent connections are dropped for new ones. If only this machine may connect, requests for other host names are
// rejected (otherwise a web page elsewhere could read the responses through a user's browser).
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
  // Called on the server's thread, one at a time, with the path of a request ("/metrics"), without its query. An
  // exception becomes a response with status 500.
  using Handler = std::function<HttpResponse(const std::string& path)>;

  // Starts listening on |host|, an address of this machine (127.0.0.1, ::1, 0.0.0.0); |port| 0 is any free one. Throws
  // ConfigError, starting with |purpose| ("prometheus"), if that is not possible.
  HttpServer(const std::string& purpose, const std::string& host, int port, Handler handler);
  ~HttpServer();  // drops connections and stops the thread; waits for a running handler
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:9400"

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Returns the response to |request|, the text up to and including its empty line. |only_local|: the Host header must be
// this machine. Pure.
std::string http_answer(std::string_view request, bool only_local, const HttpServer::Handler& handler);

}  // namespace concord
