// HTTP and HTTPS requests, by libcurl.
#pragma once

#include <chrono>
#include <string>

namespace concord {

struct HttpRequest {
  std::string url = {};
  std::string body = {};  // JSON
  std::string authorization = {};
  std::string cacert = {}, cert = {}, key = {};  // PEM files; empty: none
  std::chrono::milliseconds timeout{2000};
};

struct HttpReply {
  long status = 0;  // 0: there was no reply, and |error| is the reason
  std::string body = {};
  std::string error = {};
  std::string own_address = {};  // this machine's, as the server sees it
};

bool has_http();  // false if the program was built without libcurl

// Sends |request| by POST. Waits: at most its timeout. Threads: any.
HttpReply http_post(const HttpRequest& request);

}  // namespace concord
