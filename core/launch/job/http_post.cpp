#include "core/launch/job/http_post.h"

#ifdef CONCORD_WITH_CURL

#include <curl/curl.h>
#include <sys/socket.h>

#include <memory>

namespace concord {
namespace {

constexpr size_t kMaxReply = 1 << 20;

size_t append(const char* data, size_t, size_t count, void* body) {
  auto* text = static_cast<std::string*>(body);
  if (text->size() + count > kMaxReply) return 0;
  text->append(data, count);
  return count;
}

// Ranks must not inherit it.
curl_socket_t open_socket(void*, curlsocktype, curl_sockaddr* address) {
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

Headers headers_of(const HttpRequest& request) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  if (!request.authorization.empty()) {
    list = curl_slist_append(list, ("Authorization: " + request.authorization).c_str());
  }
  return {list, curl_slist_free_all};
}

void set_options(CURL* curl, const HttpRequest& request, const Headers& headers) {
  const auto set_file = [&](CURLoption option, const std::string& path) {
    if (!path.empty()) curl_easy_setopt(curl, option, path.c_str());
  };
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
  set_file(CURLOPT_CAINFO, request.cacert);
  set_file(CURLOPT_SSLCERT, request.cert);
  set_file(CURLOPT_SSLKEY, request.key);
}

}  // namespace

bool has_http() { return true; }

HttpReply http_post(const HttpRequest& request) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  HttpReply reply;
  if (initialized != CURLE_OK || !curl) {
    reply.error = "libcurl cannot be initialized";
    return reply;
  }
  char details[CURL_ERROR_SIZE] = "";
  const Headers headers = headers_of(request);
  set_options(curl.get(), request, headers);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &reply.body);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, details);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) {
    reply.error = *details != 0 ? details : curl_easy_strerror(code);
    return reply;
  }
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &reply.status);
  if (const char* address = nullptr;
      curl_easy_getinfo(curl.get(), CURLINFO_LOCAL_IP, &address) == CURLE_OK && address) {
    reply.own_address = address;
  }
  return reply;
}

}  // namespace concord

#else

namespace concord {

bool has_http() { return false; }

HttpReply http_post(const HttpRequest&) { return {.error = "this program was built without libcurl"}; }

}  // namespace concord

#endif
