// A rank for the launcher's tests.
//   meet     all ranks of the world meet at MASTER_ADDR:MASTER_PORT and print which ranks have joined
//   listen   takes a port, prints it, and stays
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr size_t kAnswer = 256;

int variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) {
    std::cerr << name << " is not set\n";
    std::exit(3);
  }
  return std::atoi(value);
}

sockaddr_in address_of(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

int listen_at(sockaddr_in address) {
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(server, 64) != 0) {
    std::cerr << "cannot listen: " << std::strerror(errno) << "\n";
    std::exit(4);
  }
  return server;
}

std::string serve(sockaddr_in address, int world) {
  const int server = listen_at(address);
  std::set<int> ranks = {0};
  std::vector<int> clients;
  while (static_cast<int>(ranks.size()) < world) {
    const int client = accept(server, nullptr, nullptr);
    int rank = -1;
    if (client < 0 || read(client, &rank, sizeof rank) != sizeof rank || !ranks.insert(rank).second) std::exit(5);
    clients.push_back(client);
  }
  std::string answer;
  for (const int rank : ranks) answer.append(" ").append(std::to_string(rank));
  answer.resize(kAnswer);
  for (const int client : clients) {
    if (write(client, answer.data(), kAnswer) != kAnswer) std::exit(6);
  }
  return answer;
}

std::string ask(sockaddr_in address, int rank) {
  int client = socket(AF_INET, SOCK_STREAM, 0);
  while (connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    usleep(10'000);
    close(client);
    client = socket(AF_INET, SOCK_STREAM, 0);
  }
  std::string answer(kAnswer, '\0');
  if (write(client, &rank, sizeof rank) != sizeof rank) std::exit(7);
  if (recv(client, answer.data(), kAnswer, MSG_WAITALL) != kAnswer) std::exit(8);
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  if (action == "listen") {
    sockaddr_in address = address_of("127.0.0.1", 0);
    socklen_t length = sizeof address;
    getsockname(listen_at(address), reinterpret_cast<sockaddr*>(&address), &length);
    std::cout << ntohs(address.sin_port) << std::endl;
    pause();
  } else if (action == "meet") {
    const int rank = variable("RANK");
    const sockaddr_in address = address_of(std::getenv("MASTER_ADDR"), variable("MASTER_PORT"));
    const std::string answer = rank == 0 ? serve(address, variable("WORLD_SIZE")) : ask(address, rank);
    std::cout << "met" << answer.c_str() << std::endl;
  } else {
    return 2;
  }
  return 0;
}
