#include "trainer/report/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "platform/base/unique_fd.hpp"

namespace concord {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

HttpResponse greeting(const std::string& path) {
  if (path == "/broken") throw std::runtime_error("no history");
  return path == "/a" ? HttpResponse{.body = "hello"} : HttpResponse{.status = 404, .body = "nothing\n"};
}

std::string answer(const std::string& request, bool only_local = true) {
  return http_answer(request + "\r\n\r\n", only_local, greeting);
}

TEST(HttpAnswer, IsWhatTheHandlerSaysOfThePath) {
  EXPECT_THAT(answer("GET /a?b=c HTTP/1.1\r\nHost: localhost:80"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 5\r\n"), HasSubstr("\r\n\r\nhello")));
  EXPECT_THAT(answer("HEAD /a HTTP/1.0"), AllOf(HasSubstr("Content-Length: 5\r\n"), testing::EndsWith("\r\n\r\n")));
  EXPECT_THAT(answer("GET /c HTTP/1.1"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer("GET /broken HTTP/1.1"), AllOf(StartsWith("HTTP/1.1 500 "), HasSubstr("no history")));
}

TEST(HttpAnswer, RefusesWhatIsNotARequestForAPath) {
  EXPECT_THAT(answer("POST /a HTTP/1.1"), StartsWith("HTTP/1.1 405 "));
  for (const char* const wrong : {"", " ", "GET", "GET /a", "GET a HTTP/1.1", "GET  HTTP/1.1", "GET /a FTP/1.1"})
    EXPECT_THAT(answer(wrong), StartsWith("HTTP/1.1 400 ")) << wrong;
}

// Otherwise a page of another site whose name resolves to this machine could read the response (DNS rebinding).
TEST(HttpAnswer, IsOnlyForNamesOfThisMachineWhereOnlyThatListens) {
  for (const char* const host : {"127.0.0.1:9", "LOCALHOST", "[::1]:9", "[::1]"})
    EXPECT_THAT(answer(std::string("GET /a HTTP/1.1\r\nhost:  ") + host), HasSubstr("200 OK")) << host;
  for (const char* const host : {"evil.example", "evil.example:9", "127.0.0.1.evil.example", ""})
    EXPECT_THAT(answer(std::string("GET /a HTTP/1.1\r\nHost: ") + host), StartsWith("HTTP/1.1 403 ")) << host;
  EXPECT_THAT(answer("GET /a HTTP/1.1\r\nHost: node7", false), HasSubstr("200 OK"));
}

class Client {
 public:
  explicit Client(const std::string& url) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) socket_.reset();
  }
  bool is_connected() const { return static_cast<bool>(socket_); }
  void say(const std::string& text) const { ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL); }
  bool is_open() const {  // the server has not closed it
    char byte = 0;
    return ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  std::string all() const {  // until the server closes
    std::string text;
    std::array<char, 4096> bytes{};
    for (ssize_t got = 0; (got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0)) > 0;)
      text.append(bytes.data(), static_cast<size_t>(got));
    return text;
  }

 private:
  UniqueFd socket_;
};

TEST(HttpServer, AnswersWhileOthersAreSilentSlowOrRude) {
  const std::string large(4 << 20, 'x');  // more than sockets hold
  const HttpServer server("test", "127.0.0.1", 0, [&](const std::string&) { return HttpResponse{.body = large}; });
  std::vector<Client> silent;
  for (int i = 0; i < 10; ++i) silent.emplace_back(server.url());
  silent[0].say("GET /a HT");
  silent[1].say("GET /a HTTP/1.1\r\n\r\n");  // and never reads
  {
    const Client gone(server.url());
    gone.say("GET /a HTTP/1.1\r\n\r\n");
  }
  const Client rude(server.url());
  rude.say(std::string(20000, 'a'));
  EXPECT_THAT(rude.all(), StartsWith("HTTP/1.1 431 "));
  const Client client(server.url());
  client.say("GET /");
  client.say("a HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string text = client.all();
  EXPECT_THAT(text.substr(0, 200), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(text.size() - text.find("\r\n\r\n") - 4, large.size());
}

// More connections than the server keeps. The oldest are closed, and only as many as necessary: a server that waited
// for their end would have closed all of the first ones by then.
TEST(HttpServer, SilentConnectionsMakeRoomForOthers) {
  const HttpServer server("test", "127.0.0.1", 0, greeting);
  std::vector<Client> silent;
  for (int i = 0; i < 40; ++i) silent.emplace_back(server.url());
  const Client client(server.url());
  client.say("GET /a HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.all(), StartsWith("HTTP/1.1 200 "));
  EXPECT_FALSE(silent[8].is_open());  // 41 connected, of which 32 are kept
  EXPECT_TRUE(silent[9].is_open());
}

TEST(HttpServer, SaysWhyItCannotListen) {
  const HttpServer server("test", "localhost", 0, greeting);
  const int port = std::stoi(server.url().substr(server.url().rfind(':') + 1));
  const auto error = [](const std::string& host, int at) -> std::string {
    try {
      const HttpServer other("prometheus", host, at, greeting);
    } catch (const ConfigError& caught) {
      return caught.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("127.0.0.1", port),
              AllOf(StartsWith("prometheus: cannot listen"), HasSubstr("choose another port")));
  EXPECT_THAT(error("a host", 0), HasSubstr("is not an address"));
  EXPECT_EQ(error("::1", 0), "no error");
}

}  // namespace
}  // namespace concord
