#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous.h"
#include "core/error.h"

namespace hebb {

/// What a rank tells the others about itself.
struct Member {
  int rank = 0, local_rank = -1;  // on its host; -1: nobody said
  std::string host, boot;         // name and boot id of its host
  int64_t pid = 0;
  std::string device;                  // of computation: "cpu", or the name of a GPU
  std::string gpu_id;                  // UUID of the GPU, empty on a CPU
  std::string build, config, library;  // what all ranks must have alike

  std::string name() const;  // "rank 5 (hostb:4711)"
};
/// Host, boot id and process of the caller.
Member this_member(int rank);

/// Place of a rank among those of its host, by host name and boot id.
struct HostPlace {
  int local_rank = 0, local_size = 1;
};
HostPlace host_place(const std::vector<Member>& members, int rank);

/// An error that another rank has reported already: to be logged, not printed.
class OtherRankError : public Error {
 public:
  using Error::Error;
};

struct MeetingOptions {
  int size = 1;
  Member self;
  std::string launch;   // read_launch_id()
  fs::path folder;      // of the run, shared by all ranks
  std::string address;  // where rank 0 listens, from outside; empty: rank 0 writes a rendezvous file into `folder`
  int port = 0;
  std::string token;         // of a meeting at `address`; empty: none
  bool is_one_host = false;  // all ranks are on this host: loopback
  std::string interface;     // interface_addresses()
  double init_seconds = 300, hello_seconds = 10;
  std::function<std::string()> make_ids;  // on rank 0, once all have come: what all get to know
};

/// The control connection: rank 0 holds one connection to every other rank, which hold one to rank 0.
struct ControlLinks {
  std::vector<Member> members;                                // by rank
  std::string ids;                                            // make_ids() of rank 0
  bool made_folder = false;                                   // rank 0: the folder was not there
  std::vector<std::unique_ptr<FrameConnection>> connections;  // rank 0: by rank, null for itself; others: [0]
};

/// Brings the ranks of a run together. Strangers, noise and wrong tokens cost their own connection only.
/// Errors: CommError naming missing ranks, and those that came, after init_seconds; ConfigError naming both ranks and
/// both values where ranks differ; CheckpointError on a rank that does not see the folder of rank 0; OtherRankError on
/// ranks that did not have the error themselves.
ControlLinks meet(const MeetingOptions& options);

}  // namespace hebb
