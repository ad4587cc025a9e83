#include "comm/meeting_text.h"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>

#include "core/host.h"

namespace hebb {
namespace {

constexpr int64_t kVersion = 1;

int int_member(const Json& frame, std::string_view key, int64_t lowest, int64_t highest) {
  const int64_t value = frame_integer(frame, key);
  if (value < lowest || value > highest) {
    throw CommError("control connection", "a frame whose " + std::string(key) + " is out of range");
  }
  return static_cast<int>(value);
}

constexpr int kMostRanks = 1 << 20;

Member read_member(const Json& frame) {
  return {.rank = int_member(frame, "rank", 0, kMostRanks),
          .local_rank = int_member(frame, "local_rank", -1, kMostRanks),
          .host = frame_text(frame, "host"),
          .boot = frame_text(frame, "boot"),
          .pid = frame_integer(frame, "pid"),
          .device = frame_text(frame, "device"),
          .gpu_id = frame_text(frame, "gpu_id"),
          .build = frame_text(frame, "build"),
          .config = frame_text(frame, "config"),
          .library = frame_text(frame, "library")};
}

std::string boot_id() {
  try {
    std::string id = read_file("/proc/sys/kernel/random/boot_id");
    return id.substr(0, id.find('\n'));
  } catch (const Error&) { return ""; }
}

bool same_host(const Member& a, const Member& b) { return a.host == b.host && a.boot == b.boot; }

}  // namespace

std::string Member::name() const { return fmt::format("rank {:d} ({}:{:d})", rank, host, pid); }

Member this_member(int rank) {
  Member member;
  member.rank = rank;
  member.host = host_name();
  member.boot = boot_id();
  member.pid = ::getpid();
  return member;
}

HostPlace host_place(const std::vector<Member>& members, int rank) {
  HostPlace place{.local_rank = 0, .local_size = 0};
  for (const Member& other : members) {
    if (!same_host(other, members[static_cast<size_t>(rank)])) { continue; }
    place.local_size += 1;
    place.local_rank += other.rank < rank ? 1 : 0;
  }
  return place;
}

Json member_json(const Member& m) {
  return Json::object({{"rank", m.rank},
                       {"local_rank", m.local_rank},
                       {"host", m.host},
                       {"boot", m.boot},
                       {"pid", m.pid},
                       {"device", m.device},
                       {"gpu_id", m.gpu_id},
                       {"build", m.build},
                       {"config", m.config},
                       {"library", m.library}});
}

Json hello_frame(const MeetingOptions& options, const std::string& token) {
  Json frame = member_json(options.self);
  frame.set("kind", "hello");
  frame.set("hebb", kVersion);
  frame.set("launch", options.launch);
  frame.set("token", token);
  frame.set("size", options.size);
  return frame;
}

Hello read_hello(const Json& frame) {
  if (frame_kind(frame) != "hello" || frame_integer(frame, "hebb") != kVersion) {
    throw CommError("control connection", "a frame that is no hello");
  }
  return {.token = frame_text(frame, "token"),
          .launch = frame_text(frame, "launch"),
          .size = frame_integer(frame, "size"),
          .member = read_member(frame)};
}

std::vector<Member> read_members(const Json& frame, int size) {
  const Json* list = frame.find("members");
  if (list == nullptr || !list->is_array() || list->items().size() != static_cast<size_t>(size)) {
    throw CommError("control connection", "a welcome without the ranks");
  }
  std::vector<Member> members;
  for (const Json& entry : list->items()) {
    if (!entry.is_object()) { throw CommError("control connection", "a welcome without the ranks"); }
    members.push_back(read_member(entry));
  }
  return members;
}

std::string difference(const MeetingOptions& options, const Hello& said) {
  const Member &own = options.self, &other = said.member;
  std::string text;
  const auto compare = [&](const char* what, const std::string& mine, const std::string& theirs) {
    if (mine == theirs) { return; }
    text += (text.empty() ? "" : "; ") + std::string(what) + ": " + own.name() + " has " + mine + ", " + other.name() +
            " has " + theirs;
  };
  compare("number of ranks", std::to_string(options.size), std::to_string(said.size));
  if (text.empty() && other.rank >= options.size) {
    return fmt::format("{}: no such rank (expected less than {:d})", other.name(), options.size);
  }
  compare("build", own.build, other.build);
  compare("configuration", own.config, other.config);
  compare("communication library", own.library, other.library);
  return text;
}

std::string missing_text(const MeetingOptions& options, const std::vector<Member>& members,
                         const std::vector<int>& missing, const std::string& what,
                         const std::map<std::string, int>& notes) {
  std::string came;
  for (int r = 0; r < options.size; ++r) {
    if (std::find(missing.begin(), missing.end(), r) == missing.end()) {
      came += (came.empty() ? "" : ", ") + members[static_cast<size_t>(r)].name();
    }
  }
  std::string text = fmt::format("{}{} of {:d} {} within {}; here: {}", missing.size() == 1 ? "rank " : "ranks ",
                                 rank_list(missing), options.size, what, seconds_text(options.init_seconds), came);
  for (const auto& [note, count] : notes) {
    text += "; " + note + (count > 1 ? fmt::format(" ({:d} times)", count) : "");
  }
  return text;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) { ++last; }
    text += fmt::format("{}{:d}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) { text += fmt::format("{}{:d}", last > i + 1 ? "-" : ", ", ranks[last]); }
    i = last + 1;
  }
  return text;
}

std::string seconds_text(double seconds) { return fmt::format("{:g} s", seconds); }

}  // namespace hebb
