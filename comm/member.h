#pragma once
// Frames and messages of a meeting; private to comm/.
#include <map>

#include "comm/meeting.h"

namespace hebb {

struct Hello {
  std::string token, launch;
  int64_t size = 0;
  Member member;
};
Json hello_frame(const MeetingOptions& options, const std::string& token);
/// Errors: CommError for a frame that is no hello of this version.
Hello read_hello(const Json& frame);
Json member_json(const Member& member);
/// The members of a welcome. Errors: CommError.
std::vector<Member> read_members(const Json& frame, int size);

/// What `said` has unlike rank 0, with both values and both ranks; empty where they agree.
std::string difference(const MeetingOptions& options, const Hello& said);
/// Which ranks are missing and which came. what: they did not do; notes: what else happened, how often.
std::string missing_text(const MeetingOptions& options, const std::vector<Member>& members,
                         const std::vector<int>& missing, const std::string& what,
                         const std::map<std::string, int>& notes);
/// "0-3, 6".
std::string rank_list(const std::vector<int>& ranks);
std::string seconds_text(double seconds);  // "300 s", "0.5 s"

}  // namespace hebb
