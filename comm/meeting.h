#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/member.h"
#include "comm/rendezvous.h"
#include "core/error.h"

namespace hebb {

/// An error that another rank has reported already: to be logged, not printed.
class OtherRankError : public Error {
 public:
  using Error::Error;
};

struct MeetingOptions {
  Member self;
  Agreement agreement;         // with the number of ranks
  std::string launch;          // read_launch_id()
  fs::path folder;             // of the run, shared by all ranks: rank 0 writes there where it listens, and a secret
  std::string address;         // where rank 0 listens, from outside; empty: where ranks can come from
  int port = 0;                // of `address`
  std::string secret;          // beside that of the folder; may be empty
  bool is_one_host = false;    // all ranks are on this host: loopback
  std::string interface;       // interface_addresses()
  double init_seconds = 300;   // for all ranks to meet
  double hello_seconds = 10;   // for either side to prove itself
  double notice_seconds = 10;  // until notice() hears what is waited for
  std::function<std::string()> make_ids{};                // on rank 0, once all have come: what all get to know
  std::function<void(const std::string& line)> notice{};  // called once at most
  std::function<double()> clock{};                        // of these limits, of AwakeTime
};

/// The control connection: rank 0 holds one connection to every other rank, which hold one to rank 0.
struct ControlLinks {
  std::vector<Member> members;                                // by rank
  std::string ids;                                            // make_ids() of rank 0
  bool made_folder = false;                                   // rank 0: the folder was not there
  std::vector<std::unique_ptr<FrameConnection>> connections;  // rank 0: by rank, null for itself; others: [0]
};

/// Brings the ranks of a run together. Both ends of a connection prove first that they know the secret, without sending
/// it (docs/design/data-parallel.md). Who does not is told nothing, and costs its own connection only. Errors:
/// CommError naming missing ranks, and those that came, after init_seconds; ConfigError naming both ranks and both
/// values where ranks differ; OtherRankError on ranks that did not have the error themselves.
ControlLinks meet(const MeetingOptions& options);

/// The keys of a connection of `rank`, each of one direction.
struct SessionKeys {
  std::string to_first, from_first;  // rank 0
};
/// nonces: of the rank and of rank 0, new for each connection.
SessionKeys session_keys(const std::string& secret, const std::string& launch, int rank, const std::string& nonce,
                         const std::string& nonce_of_first);

}  // namespace hebb
