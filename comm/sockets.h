#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/frames.h"
#include "core/files.h"

namespace hebb {

using Socket = Descriptor;

/// Address and port of an end of a connection.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string text() const;  // "10.0.0.4:4711", "[::1]:4711"
  std::string host() const;  // "10.0.0.4", "::1"
  int port() const;
};

/// What a host name or a numeric address stands for. Errors: CommError.
std::vector<Endpoint> resolve(const std::string& host, int port);

/// An address of this host and the interface that has it.
struct InterfaceAddress {
  std::string interface, address;
};
/// Numeric addresses by which others may reach this host: interfaces that are up, without loopback and those of
/// containers and virtual machines (docker*, br-*, virbr*, veth*). wanted: an interface ("eth0") or a network
/// ("10.0.0.0/8"); empty: all. Errors: CommError where nothing matches `wanted`.
std::vector<InterfaceAddress> interface_addresses(const std::string& wanted);
/// Whether an IPv4 address lies in a network "10.0.0.0/8". Errors: CommError for text that is no network.
bool is_in_network(const std::string& address, const std::string& network);

/// Listens; port 0 takes a free one. Errors: CommError with the address and the system's reason.
Socket listen_at(const Endpoint& endpoint);
/// Where a socket is bound.
Endpoint local_endpoint(const Socket& socket);
/// A connection, or the system's reason in `error`.
Socket connect_to(const Endpoint& endpoint, double seconds, std::string& error);
/// The next waiting connection and where it comes from; closed where there is none.
Socket accept_from(const Socket& listener, std::string& peer);

/// A socket that carries frames, without ever blocking.
class FrameConnection {
 public:
  FrameConnection(Socket socket, std::string peer, size_t limit)
      : socket_(std::move(socket)), peer_(std::move(peer)), reader_(limit) {}

  int fd() const { return socket_.fd(); }
  bool is_open() const { return socket_.is_open(); }
  void close() { socket_.close(); }
  const std::string& peer() const { return peer_; }
  void set_limit(size_t limit) { reader_.set_limit(limit); }
  /// From here on frames have seals, each direction with a key of its own.
  void set_keys(std::string sending, std::string receiving) {
    key_ = std::move(sending);
    reader_.set_key(std::move(receiving));
  }

  /// Reads what has arrived; closes at the end of the stream and on errors.
  void receive();
  /// The next frame. Errors: CommError (FrameReader).
  std::optional<Json> next() { return reader_.next(); }
  /// Queues a frame and sends what the system takes now.
  void send(const Json& frame);
  void flush();
  bool wants_to_write() const { return is_open() && !out_.empty(); }
  /// For ::poll: what it waits for.
  pollfd polled() const { return {fd(), static_cast<short>(POLLIN | (wants_to_write() ? POLLOUT : 0)), 0}; }

 private:
  Socket socket_;
  std::string peer_;
  FrameReader reader_;
  std::string out_, key_;
  uint64_t number_ = 0;  // frames with a seal sent before
};

}  // namespace hebb
