#pragma once
#include <string>
#include <vector>

#include "comm/frames.h"

namespace hebb {

constexpr int kMostRanks = 1 << 20;

/// What a rank tells the others about itself.
struct Member {
  int rank = 0, local_rank = -1;  // on its host; -1: nobody said
  std::string host, boot;         // name and boot id of its host
  int64_t pid = 0;
  std::string device;  // of computation: "cpu", or the name of a GPU
  std::string gpu_id;  // UUID of the GPU, empty on a CPU

  std::string name() const;  // "rank 5 (hostb:4711)"
};
/// Host, boot id and process of the caller.
Member this_member(int rank);

Json member_json(const Member& member);
/// Errors: CommError.
Member read_member(const Json& frame);
std::vector<Member> read_members(const Json& frame, int size);

/// Place of a rank among those of its host, by host name and boot id.
struct HostPlace {
  int local_rank = 0, local_size = 1;
};
HostPlace host_place(const std::vector<Member>& members, int rank);

/// What all ranks must have alike.
struct Agreement {
  int size = 1;
  std::string build, library;
  Json config{};
};
Json agreement_json(const Agreement& agreement);
/// Errors: CommError.
Agreement read_agreement(const Json* value);
/// In what two ranks differ, with both names and values; empty where they agree. Of configurations the keys are named.
std::string difference(const Member& a, const Agreement& of_a, const Member& b, const Agreement& of_b);

/// "0-3, 6".
std::string rank_list(const std::vector<int>& ranks);
std::string seconds_text(double seconds);  // "300 s", "0.5 s"

}  // namespace hebb
