#include "serve/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace hebb {
namespace {

constexpr int kLongestDescriptor = 4096;
constexpr int kWriteMilliseconds = 60000;

struct Address {
  sockaddr_storage value{};
  socklen_t size = sizeof value;
  bool is_known = false;

  template <class Get> Address(int fd, Get get) {
    is_known = get(fd, reinterpret_cast<sockaddr*>(&value), &size) == 0 &&
               (value.ss_family == AF_INET || value.ss_family == AF_INET6);
  }
  int port() const {
    if (!is_known) { return -1; }
    return ntohs(value.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&value)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&value)->sin_port);
  }
  std::string host() const {
    char name[NI_MAXHOST];
    return ::getnameinfo(reinterpret_cast<const sockaddr*>(&value), size, name, sizeof name, nullptr, 0,
                         NI_NUMERICHOST) == 0
               ? name
               : "";
  }
};

short events_of(int fd, short asked, int milliseconds) {
  pollfd entry{fd, asked, 0};
  return ::poll(&entry, 1, milliseconds) > 0 ? entry.revents : short{0};
}

}  // namespace

void each_connection(int own_port, const std::function<void(int descriptor, int client_port)>& f) {
  for (int fd = 0; fd < kLongestDescriptor; ++fd) {
    if (Address(fd, ::getsockname).port() != own_port) { continue; }
    if (const int port = Address(fd, ::getpeername).port(); port >= 0) { f(fd, port); }
  }
}

bool Connection::is_at(int own_port, const std::string& address, int port) const {
  if (descriptor_ < 0 || Address(descriptor_, ::getsockname).port() != own_port) { return false; }
  const Address client(descriptor_, ::getpeername);
  return client.port() == port && client.host() == address;
}

void Connection::find(int own_port, const std::string& address, int port) {
  is_answered = false;
  if (is_at(own_port, address, port)) { return; }
  int found = -1;
  each_connection(own_port, [&](int fd, int client_port) {
    descriptor_ = fd;
    if (client_port == port && is_at(own_port, address, port)) { found = fd; }
  });
  descriptor_ = found;
}

bool Connection::has_ended() const { return descriptor_ >= 0 && events_of(descriptor_, POLLRDHUP, 0) != 0; }

bool Connection::has_left() const {
  return descriptor_ >= 0 && (events_of(descriptor_, 0, 0) & (POLLHUP | POLLERR)) != 0;
}

bool Connection::write(std::string_view text) const {
  while (!text.empty()) {
    const short events = events_of(descriptor_, POLLOUT, kWriteMilliseconds);
    if ((events & POLLOUT) == 0 || (events & (POLLHUP | POLLERR)) != 0) { return false; }
    const ssize_t count = ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno != EAGAIN && errno != EINTR) { return false; }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
  return true;
}

}  // namespace hebb
