#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace hebb {

/// Calls f(descriptor, port of the client) for the connections of this process at its own port.
void each_connection(int own_port, const std::function<void(int descriptor, int client_port)>& f);

/// A client at the other end of a TCP connection of this process, which somebody else closes.
class Connection {
 public:
  /// Takes the client at address:port of a server at `own_port`, and forgets what it knew of another request.
  void find(int own_port, const std::string& address, int port);
  /// The client sends nothing more. It may still read: whether it does shows when something is written.
  bool has_ended() const;
  /// The client is gone.
  bool has_left() const;
  /// False: the client is gone, or takes nothing in for a minute.
  bool write(std::string_view text) const;

  bool is_answered = false;  // by write()

 private:
  bool is_at(int own_port, const std::string& address, int port) const;
  int descriptor_ = -1;
};

}  // namespace hebb
