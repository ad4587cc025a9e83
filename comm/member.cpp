#include "comm/member.h"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>

#include "comm/sha256.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/join.h"

namespace hebb {
namespace {

constexpr size_t kLargestConfig = size_t{1} << 20, kMostKeys = 8;

std::string boot_id() {
  try {
    std::string id = read_file("/proc/sys/kernel/random/boot_id");
    return id.substr(0, id.find('\n'));
  } catch (const Error&) { return ""; }
}

bool same_host(const Member& a, const Member& b) { return a.host == b.host && a.boot == b.boot; }

std::string short_text(const Json* value) { return value == nullptr ? "absent" : value->found(); }

/// "train.steps (10, 20)", for each place at which two values differ.
void compare(const Json* a, const Json* b, const std::string& path, std::vector<std::string>& found) {
  if (a != nullptr && b != nullptr && *a == *b) { return; }
  if (a == nullptr || b == nullptr || !a->is_object() || !b->is_object()) {
    found.push_back(fmt::format("{} ({}, {})", path, short_text(a), short_text(b)));
    return;
  }
  const auto path_of = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  for (const auto& [key, value] : a->members()) { compare(&value, b->find(key), path_of(key), found); }
  for (const auto& [key, value] : b->members()) {
    if (a->find(key) == nullptr) { compare(nullptr, &value, path_of(key), found); }
  }
}

std::string different_keys(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) { return a == b ? "" : "their configurations"; }
  std::vector<std::string> found;
  compare(&a, &b, "", found);
  const size_t shown = std::min(found.size(), kMostKeys);
  const std::string more = shown < found.size() ? fmt::format(" and {:d} more", found.size() - shown) : "";
  found.resize(shown);
  return join(found, ", ") + more;
}

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

Json member_json(const Member& m) {
  return Json::object({{"rank", m.rank},
                       {"local_rank", m.local_rank},
                       {"host", m.host},
                       {"boot", m.boot},
                       {"pid", m.pid},
                       {"device", m.device},
                       {"gpu_id", m.gpu_id}});
}

Member read_member(const Json& frame) {
  return {.rank = static_cast<int>(frame_integer(frame, "rank", 0, kMostRanks)),
          .local_rank = static_cast<int>(frame_integer(frame, "local_rank", -1, kMostRanks)),
          .host = frame_text(frame, "host"),
          .boot = frame_text(frame, "boot"),
          .pid = frame_integer(frame, "pid"),
          .device = frame_text(frame, "device"),
          .gpu_id = frame_text(frame, "gpu_id")};
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

HostPlace host_place(const std::vector<Member>& members, int rank) {
  HostPlace place{.local_rank = 0, .local_size = 0};
  for (const Member& other : members) {
    if (!same_host(other, members[static_cast<size_t>(rank)])) { continue; }
    place.local_size += 1;
    place.local_rank += other.rank < rank ? 1 : 0;
  }
  return place;
}

Json agreement_json(const Agreement& a) {
  const std::string text = a.config.dump(-1, true);
  const bool is_short = text.size() <= kLargestConfig;
  return Json::object({{"size", a.size},
                       {"build", a.build},
                       {"library", a.library},
                       {"config", is_short ? a.config : Json(hexadecimal(sha256(text)))}});
}

Agreement read_agreement(const Json* value) {
  if (value == nullptr || !value->is_object()) {
    throw CommError("control connection", "a rank without its configuration");
  }
  const Json* config = value->find("config");
  return {.size = static_cast<int>(frame_integer(*value, "size", 1, kMostRanks)),
          .build = frame_text(*value, "build"),
          .library = frame_text(*value, "library"),
          .config = config == nullptr ? Json() : *config};
}

std::string difference(const Member& a, const Agreement& of_a, const Member& b, const Agreement& of_b) {
  if (of_a.size == of_b.size && b.rank >= of_a.size) {
    return fmt::format("{}: no such rank (expected less than {:d})", b.name(), of_a.size);
  }
  std::vector<std::string> found;
  const auto look = [&](const char* what, const std::string& mine, const std::string& theirs) {
    if (mine == theirs) { return; }
    found.push_back(fmt::format("{}: {} has {}, {} has {}", what, a.name(), mine, b.name(), theirs));
  };
  look("number of ranks", std::to_string(of_a.size), std::to_string(of_b.size));
  look("build", of_a.build, of_b.build);
  look("communication library", of_a.library, of_b.library);
  // As they are sent: of what is too long there is a hash.
  const std::string keys = different_keys(*agreement_json(of_a).find("config"), *agreement_json(of_b).find("config"));
  if (!keys.empty()) {
    found.push_back(fmt::format("configuration: {} and {} differ in {}", a.name(), b.name(), keys));
  }
  return join(found, "; ");
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
