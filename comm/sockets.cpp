#include "comm/sockets.h"

#include <fmt/core.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace hebb {
namespace {

std::string reason() { return std::strerror(errno); }

void make_non_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

void send_at_once(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

const sockaddr* as_sockaddr(const Endpoint& endpoint) { return reinterpret_cast<const sockaddr*>(&endpoint.storage); }

std::string host_text(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  const bool is_known = ::getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return is_known ? host : "?";
}

bool is_virtual(const std::string& interface) {
  for (const char* prefix : {"docker", "br-", "virbr", "veth"}) {
    if (interface.starts_with(prefix)) { return true; }
  }
  return false;
}

}  // namespace

std::string Endpoint::host() const { return host_text(as_sockaddr(*this), length); }

std::string Endpoint::text() const {
  return fmt::format("{}:{:d}", storage.ss_family == AF_INET6 ? "[" + host() + "]" : host(), port());
}

int Endpoint::port() const {
  const bool is_v6 = storage.ss_family == AF_INET6;
  return ntohs(is_v6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::vector<Endpoint> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) { throw CommError(host, std::string("no such host: ") + ::gai_strerror(status)); }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Endpoint endpoint;
    endpoint.length = at->ai_addrlen;
    std::memcpy(&endpoint.storage, at->ai_addr, at->ai_addrlen);
    endpoints.push_back(endpoint);
  }
  return endpoints;
}

bool is_in_network(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  in_addr base{}, own{};
  int bits = -1;
  if (slash != std::string::npos && slash + 1 < network.size() && network.size() - slash <= 3 &&
      network.find_first_not_of("0123456789", slash + 1) == std::string::npos) {
    bits = std::stoi(network.substr(slash + 1));
  }
  if (bits < 0 || bits > 32 || ::inet_pton(AF_INET, network.substr(0, slash).c_str(), &base) != 1) {
    throw CommError("train.comm.interface", "found " + network + ", expected a network such as 10.0.0.0/8");
  }
  if (::inet_pton(AF_INET, address.c_str(), &own) != 1) { return false; }
  const uint32_t mask = bits == 0 ? 0 : ~uint32_t{0} << (32 - bits);
  return ((ntohl(base.s_addr) ^ ntohl(own.s_addr)) & mask) == 0;
}

std::vector<InterfaceAddress> interface_addresses(const std::string& wanted) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) { throw CommError("network interfaces", reason()); }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  const bool is_network = wanted.find('/') != std::string::npos;
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0) { continue; }
    const InterfaceAddress entry{at->ifa_name, host_text(at->ifa_addr, sizeof(sockaddr_in))};
    const bool is_usual = (at->ifa_flags & IFF_LOOPBACK) == 0 && !is_virtual(entry.interface);
    const bool fits = wanted.empty() ? is_usual
                      : is_network   ? is_in_network(entry.address, wanted)
                                     : entry.interface == wanted || entry.address == wanted;
    if (fits) { addresses.push_back(entry); }
  }
  if (addresses.empty() && !wanted.empty()) {
    throw CommError("train.comm.interface", "no interface of this host that is up fits (found " + wanted + ")");
  }
  return addresses;
}

Socket listen_at(const Endpoint& endpoint) {
  Socket socket(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (socket.is_open()) { ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); }
  if (!socket.is_open() || ::bind(socket.fd(), as_sockaddr(endpoint), endpoint.length) != 0 ||
      ::listen(socket.fd(), 1024) != 0) {
    throw CommError(endpoint.text(), "cannot listen: " + reason());
  }
  make_non_blocking(socket.fd());
  return socket;
}

Endpoint local_endpoint(const Socket& socket) {
  Endpoint endpoint;
  endpoint.length = sizeof endpoint.storage;
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.length);
  return endpoint;
}

Socket connect_to(const Endpoint& endpoint, double seconds, std::string& error) {
  const auto fail = [&](int number) {
    error = std::strerror(number);
    return Socket();
  };
  Socket socket(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) { return fail(errno); }
  make_non_blocking(socket.fd());
  if (::connect(socket.fd(), as_sockaddr(endpoint), endpoint.length) != 0) {
    if (errno != EINPROGRESS) { return fail(errno); }
    pollfd wait{socket.fd(), POLLOUT, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(seconds * 1000));
    int status = ready == 0 ? ETIMEDOUT : EINTR;
    socklen_t length = sizeof status;
    if (ready > 0) { ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &status, &length); }
    if (status != 0) { return fail(status); }
  }
  send_at_once(socket.fd());
  return socket;
}

Socket accept_from(const Socket& listener, std::string& peer) {
  Endpoint from;
  from.length = sizeof from.storage;
  Socket socket(
      ::accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) {
    send_at_once(socket.fd());
    peer = from.text();
  }
  return socket;
}

void FrameConnection::receive() {
  char bytes[4096];
  // At most a frame at a time: a stranger who sends without end fills no memory.
  for (size_t read = 0; is_open() && read <= kLargestFrame;) {
    const ssize_t n = ::recv(fd(), bytes, sizeof bytes, 0);
    if (n > 0) {
      reader_.add({bytes, static_cast<size_t>(n)});
      read += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      close();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void FrameConnection::send(const Json& frame) {
  out_ += encode_frame(frame, key_, key_.empty() ? 0 : number_++);
  flush();
}

void FrameConnection::flush() {
  while (wants_to_write()) {
    const ssize_t n = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n > 0) {
      out_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      close();
    }
  }
}

}  // namespace hebb
